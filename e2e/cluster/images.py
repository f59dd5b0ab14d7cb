"""The images of a cluster's nodes: built where they are absent or their sources have changed, kept in one store."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import builders
from e2e.cluster.base_image import BUSYBOX_IMAGE, PAUSE_IMAGE, busybox_archive, pause_archive, python_archive
from e2e.cluster.image_recipes import RECIPES, ImageRecipe
from e2e.cluster.image_store import ImageStore

NAMES = (PAUSE_IMAGE, BUSYBOX_IMAGE, *(recipe.image for recipe in RECIPES))


def ensure_images() -> ImageStore:
    """The store that nodes are cloned from, up to date."""
    store = ImageStore.of("nodes")
    store.folder.mkdir(parents=True, exist_ok=True)
    import_archives(store, {PAUSE_IMAGE: pause_archive(), BUSYBOX_IMAGE: busybox_archive()})
    base = python_archive().parent.name
    keys = {recipe.image: recipe.key(base) for recipe in RECIPES}
    stale = [recipe for recipe in RECIPES if store.keys().get(recipe.image) != keys[recipe.image]]
    if stale:
        build(stale, store)
        for recipe in stale:
            store.set_key(recipe.image, keys[recipe.image])
    return store


def import_archives(store: ImageStore, archives: Mapping[str, Path]) -> None:
    stale = {name: path for name, path in archives.items() if store.keys().get(name) != path.parent.name}
    if stale:
        with store.running() as containerd:
            for name, path in stale.items():
                containerd.import_archive(path)
                store.set_key(name, path.parent.name)


def build(recipes: list[ImageRecipe], store: ImageStore) -> None:
    start_builder = builders.BUILDERS[builders.choose_builder(os.environ.get("IMAGE_BUILDER"))]
    with start_builder() as builder, store.running() as destination:
        # mostly downloads and disk, so that one fills what another leaves
        with ThreadPoolExecutor() as pool:
            list(pool.map(builder.build, recipes))
        for recipe in recipes:
            builder.deliver(recipe, destination)
