"""The version before this one, from which an upgrade is tested: its files, and images that are built from them."""

from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.images.image_recipes import CHECKOUT, RECIPES, ImageRecipe, recipes
from rljob_worker.built_once import build_once, cache_root

COMMIT = "c8e8c57f5b642868327365115368991fa81bb610"
"""The last release, and it moves on with each; before the first one, a commit whose RLJobs, plans, statuses and images
differ from today's."""
TAG = "before"
"""Of its images."""
IMAGES = tuple(f"{recipe.image.rpartition(':')[0]}:{TAG}" for recipe in RECIPES)


def checkout() -> Path:
    """Its files, which the history of the repository has. CommandFailed in a clone without history."""
    return build_once(cache_root() / "versions" / COMMIT[:12], _unpack)


def image_recipes() -> tuple[ImageRecipe, ...]:
    return recipes(TAG, checkout())


def _unpack(folder: Path) -> None:
    archive = folder / "files.tar"
    run("git", "-C", CHECKOUT, "archive", "--output", archive, COMMIT)
    run("tar", "-xf", archive, "-C", folder)
    archive.unlink()
