"""The images of a cluster's nodes: built where they are absent or their sources have changed, kept in one store."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from e2e.cluster.commands import CommandFailed
from e2e.cluster.images import builders, version_before
from e2e.cluster.images.base_image import BUSYBOX_IMAGE, PAUSE_IMAGE, busybox_archive, pause_archive, python_archive
from e2e.cluster.images.image_recipes import RECIPES, ImageRecipe
from e2e.cluster.images.image_store import ImageStore

NAMES = (PAUSE_IMAGE, BUSYBOX_IMAGE, *(recipe.image for recipe in RECIPES), *version_before.IMAGES)


def node_images() -> ImageStore:
    """The store that nodes are cloned from, as it is."""
    store = ImageStore.of("nodes")
    store.folder.mkdir(parents=True, exist_ok=True)
    return store


def ensure_images(more: Sequence[ImageRecipe] = ()) -> ImageStore:
    """The store that nodes are cloned from, up to date, with `more` than every cluster has."""
    import_archives(node_images(), {PAUSE_IMAGE: pause_archive(), BUSYBOX_IMAGE: busybox_archive()})
    return ensure((*RECIPES, *version_before.image_recipes(), *more))


def ensure(recipes: Sequence[ImageRecipe]) -> ImageStore:
    """The store that nodes are cloned from, with these images in it as they are now."""
    store, base = node_images(), python_archive().parent.name
    keys = {recipe: recipe.key(base) for recipe in recipes}
    stale = [recipe for recipe, key in keys.items() if store.keys().get(recipe.image) != key]
    if stale:
        failures = build(stale, store)
        for recipe in stale:
            if recipe not in failures:
                store.set_key(recipe.image, keys[recipe])
        if failures:
            raise CommandFailed("\n\n".join(f"{recipe.image}: {error}" for recipe, error in failures.items()))
    return store


def import_archives(store: ImageStore, archives: Mapping[str, Path]) -> None:
    stale = {name: path for name, path in archives.items() if store.keys().get(name) != path.parent.name}
    if stale:
        with store.running() as containerd:
            for name, path in stale.items():
                containerd.import_archive(path)
                store.set_key(name, path.parent.name)


def build(recipes: list[ImageRecipe], store: ImageStore) -> dict[ImageRecipe, CommandFailed]:
    """Builds and stores what can be built; one image that cannot does not hold up the others."""
    start_builder = builders.BUILDERS[builders.choose_builder(os.environ.get("IMAGE_BUILDER"))]
    failures: dict[ImageRecipe, CommandFailed] = {}
    # mostly downloads and disk, so that one fills what another leaves
    with start_builder() as builder, ThreadPoolExecutor() as pool:
        running = {pool.submit(builder.build, recipe): recipe for recipe in recipes}
        with store.running() as destination:
            for build in as_completed(running):
                recipe, error = running[build], build.exception()
                if error is None:
                    builder.deliver(recipe, destination)
                elif isinstance(error, CommandFailed):
                    failures[recipe] = error
                else:
                    raise error
    return failures
