"""The file that says what a directory was made from, written last: with the digest of every other file."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from rljob_worker.tiny.recipe import Recipe

SEAL = "tiny.json"
_MADE = ("*.parquet", "model/*")


def seal(directory: Path, recipe: Recipe) -> None:
    """Says that all that `recipe` makes is in `directory`."""
    paths = sorted(path for pattern in _MADE for path in directory.glob(pattern))
    names = [str(path.relative_to(directory)) for path in paths]
    (directory / SEAL).write_text(json.dumps(_contents(directory, recipe, names), indent=2))


def break_seal(directory: Path) -> None:
    (directory / SEAL).unlink(missing_ok=True)


def holds(directory: Path, recipe: Recipe) -> bool:
    """Whether `directory` has all that `recipe` makes, each file as it was made."""
    try:
        said = json.loads((directory / SEAL).read_bytes())
        return bool(said == _contents(directory, recipe, said["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def sealed_files(directory: Path) -> list[str]:
    """Relative paths of what the seal covers."""
    return [*json.loads((directory / SEAL).read_bytes())["files"]]


def _contents(directory: Path, recipe: Recipe, names: Iterable[str]) -> dict[str, object]:
    digests = {name: sha256((directory / name).read_bytes()).hexdigest() for name in names}
    return {"recipe": json.loads(recipe.stamp()), "files": digests}
