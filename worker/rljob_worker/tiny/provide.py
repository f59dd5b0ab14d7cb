"""Made once per recipe and kept for the user: a second directory gets a copy, and waits for no import of torch."""

import shutil
from functools import partial
from pathlib import Path

from rljob_worker.built_once import build_once, cache_root, can_keep
from rljob_worker.tiny.recipe import Recipe
from rljob_worker.tiny.seal import SEAL, break_seal, holds, sealed_files


def provide(recipe: Recipe, directory: Path) -> bool:
    """What `recipe` makes, in `directory`; False when it was there already."""
    if holds(directory, recipe):
        return False
    if holds(cache_folder(recipe), recipe) or can_keep(cache_folder(recipe)):
        copy(cache_model(recipe), directory)
    else:
        print(f"{cache_folder(recipe).parent} cannot be written: making the model in {directory}, and keeping no copy")
        _make(recipe, directory)
    return True


def cache_model(recipe: Recipe) -> Path:
    """The folder of the cache that holds what `recipe` makes; another process that makes it is waited for."""
    return build_once(cache_folder(recipe), partial(_make, recipe), lambda folder: holds(folder, recipe))


def cache_folder(recipe: Recipe) -> Path:
    return cache_root() / "tiny" / recipe.key()


def copy(kept: Path, directory: Path) -> None:
    """The seal goes first and comes last: a copy that is cut off is not taken for a whole one."""
    break_seal(directory)
    for name in (*sealed_files(kept), SEAL):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(kept / name, directory / name)


def _make(recipe: Recipe, directory: Path) -> None:
    from rljob_worker.tiny.make import make_model

    make_model(recipe, directory)
