"""Programs that make images from Dockerfiles: BuildKit, else a docker engine, else buildah."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster.commands import CommandFailed, environment, run
from e2e.cluster.go_programs import program
from e2e.cluster.images.base_image import PYTHON_IMAGE, python_archive
from e2e.cluster.images.containerd import NAMESPACE, Containerd
from e2e.cluster.images.image_recipes import ImageRecipe
from e2e.cluster.images.image_store import ImageStore
from e2e.cluster.images.image_transfer import copy_image
from e2e.cluster.waiting import wait_until

# a machine behind a proxy of its own trusts more than an image does; the files are used while building only
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Builder(Protocol):
    def build(self, recipe: ImageRecipe) -> None: ...

    def deliver(self, recipe: ImageRecipe, destination: Containerd) -> None:
        """Brings the built image to where nodes are cloned from."""


@dataclass(frozen=True, slots=True)
class BuildKit:
    """A buildkitd whose images and cache live in a store of their own."""

    store: ImageStore
    containerd: Containerd

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["BuildKit"]:
        store = ImageStore.of("builder")
        store.folder.mkdir(parents=True, exist_ok=True)
        with store.running() as containerd:
            import_base(store, containerd)
            config = store.folder / "buildkitd.toml"
            config.write_text(buildkit_config(store, containerd))
            with (store.folder / "buildkitd.log").open("ab") as log:
                words = [str(program("buildkitd")), "--config", str(config)]
                server = subprocess.Popen(words, stdout=log, stderr=log, env=environment(), start_new_session=True)
            try:
                builder = cls(store, containerd)
                wait_until(builder.answers, "buildkitd", timeout_seconds=60)
                yield builder
            finally:
                server.terminate()
                server.wait()

    def buildctl(self, *words: str | Path) -> str:
        return run("nice", "-n", "5", program("buildctl"), "--addr", f"unix://{buildkit_socket(self.store)}", *words)

    def answers(self) -> bool:
        try:
            self.buildctl("debug", "workers")
        except CommandFailed:
            return False
        return True

    def build(self, recipe: ImageRecipe) -> None:
        self.buildctl(
            *("build", "--progress", "plain", "--frontend", "dockerfile.v0"),
            *("--local", f"context={recipe.checkout}", "--local", f"dockerfile={recipe.dockerfile.parent}"),
            *("--opt", f"filename={recipe.dockerfile.name}"),
            *("--opt", f"build-arg:BASE_IMAGE={PYTHON_IMAGE}", "--opt", "image-resolve-mode=local"),
            *(word for argument in recipe.arguments for word in ("--opt", f"build-arg:{argument}")),
            *("--secret", f"id=ca,src={CERTIFICATES}"),
            *buildctl_contexts(recipe.contexts()),
            *("--output", f"type=image,name={recipe.image},compression=uncompressed,unpack=false"),
        )

    def deliver(self, recipe: ImageRecipe, destination: Containerd) -> None:
        copy_image(self.store, self.containerd.images()[recipe.image], destination)


def buildctl_contexts(contexts: Mapping[str, Path]) -> list[str]:
    """Options that name folders for a Dockerfile to take from."""
    options = [
        ("--local", f"{name}={folder}", "--opt", f"context:{name}=local:{name}") for name, folder in contexts.items()
    ]
    return [word for option in options for word in option]


def build_contexts(contexts: Mapping[str, Path]) -> list[str]:
    """Options that name folders for a Dockerfile to take from, of docker and buildah."""
    return [word for name, folder in contexts.items() for word in ("--build-context", f"{name}={folder}")]


def build_arguments(arguments: Sequence[str]) -> list[str]:
    """Build arguments as options of docker and buildah."""
    return [word for argument in arguments for word in ("--build-arg", argument)]


def buildkit_socket(store: ImageStore) -> Path:
    return store.folder / "buildkitd.sock"


def buildkit_config(store: ImageStore, containerd: Containerd) -> str:
    return f"""root = "{store.folder / "buildkit"}"
[grpc]
  address = ["unix://{buildkit_socket(store)}"]
[worker.oci]
  enabled = false
[worker.containerd]
  enabled = true
  address = "{containerd.socket}"
  namespace = "{NAMESPACE}"
  snapshotter = "overlayfs"
  networkMode = "host"
  gc = true
  [[worker.containerd.gcpolicy]]
    all = true
    maxUsedSpace = "15GB"
"""


def import_base(store: ImageStore, containerd: Containerd) -> None:
    archive = python_archive()
    if store.keys().get(PYTHON_IMAGE) != archive.parent.name:
        containerd.import_archive(archive)
        store.set_key(PYTHON_IMAGE, archive.parent.name)


@dataclass(frozen=True, slots=True)
class Docker:
    """A docker engine, which gets the real python:3.11-slim."""

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Docker"]:
        yield cls()

    def build(self, recipe: ImageRecipe) -> None:
        secret = ("--secret", f"id=ca,src={CERTIFICATES}") if CERTIFICATES.exists() else ()
        contexts = build_contexts(recipe.contexts())
        words = (
            "docker",
            "build",
            "--file",
            recipe.dockerfile,
            "--tag",
            recipe.image,
            *secret,
            *build_arguments(recipe.arguments),
            *contexts,
            recipe.checkout,
        )
        run(*words, env={"DOCKER_BUILDKIT": "1"})

    def deliver(self, recipe: ImageRecipe, destination: Containerd) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "image.tar"
            run("docker", "save", "--output", archive, recipe.image)
            destination.import_archive(archive)


@dataclass(frozen=True, slots=True)
class Buildah:
    """No daemon; slower than BuildKit, and every delivery is a whole image."""

    folder: Path

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Buildah"]:
        builder = cls(ImageStore.of("buildah").folder)
        builder.folder.mkdir(parents=True, exist_ok=True)
        builder.buildah("pull", f"docker-archive:{python_archive()}")
        yield builder

    def buildah(self, *words: str | Path) -> str:
        storage = ("--root", self.folder / "root", "--runroot", self.folder / "run", "--storage-driver", "overlay")
        return run("nice", "-n", "5", "buildah", *storage, *words)

    def build(self, recipe: ImageRecipe) -> None:
        self.buildah(
            *("build", "--isolation", "chroot", "--network", "host", "--layers"),
            *("--secret", f"id=ca,src={CERTIFICATES}"),
            *build_arguments((f"BASE_IMAGE={PYTHON_IMAGE}", *recipe.arguments)),
            *build_contexts(recipe.contexts()),
            *("--file", recipe.dockerfile, "--tag", recipe.image, recipe.checkout),
        )

    def deliver(self, recipe: ImageRecipe, destination: Containerd) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            archive = Path(scratch) / "image.tar"
            self.buildah("push", recipe.image, f"docker-archive:{archive}:{recipe.image}")
            destination.import_archive(archive)


def has_docker_engine() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


CAN_BUILD: dict[str, Callable[[], bool]] = {
    "buildkit": lambda: shutil.which("go") is not None,
    "docker": has_docker_engine,
    "buildah": lambda: shutil.which("buildah") is not None,
}
BUILDERS: dict[str, Callable[[], AbstractContextManager[Builder]]] = {
    "buildkit": BuildKit.running,
    "docker": Docker.running,
    "buildah": Buildah.running,
}


def choose_builder(asked_for: str | None) -> str:
    """The builder of that name, else the first that can work here."""
    if asked_for is not None and asked_for not in BUILDERS:
        raise ValueError(f"IMAGE_BUILDER={asked_for}: the builders are {', '.join(BUILDERS)}")
    for name in [asked_for] if asked_for else CAN_BUILD:
        if CAN_BUILD[name]():
            return name
    raise RuntimeError("nothing here builds images: install Go (for BuildKit), a docker engine, or the package buildah")
