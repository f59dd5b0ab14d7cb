"""A folder of images, kept by a containerd that runs only while it is asked something."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from e2e.cluster.commands import environment, run
from e2e.cluster.images.containerd import Containerd, store_config
from e2e.cluster.waiting import wait_until
from rljob_worker.built_once import cache_root, locked

SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
IN_USE = "in-use"


@dataclass(frozen=True, slots=True)
class ImageStore:
    folder: Path

    @classmethod
    def of(cls, name: str) -> "ImageStore":
        return cls(cache_root() / "images" / name)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @contextmanager
    def running(self) -> Iterator[Containerd]:
        """One user at a time: others wait here."""
        with locked(self.folder / "lock"):
            config = self.folder / "containerd.toml"
            config.write_text(store_config(self.folder))
            containerd = Containerd(self.folder / "containerd.sock")
            with (self.folder / "containerd.log").open("ab") as log:
                server = subprocess.Popen(
                    ["containerd", "--config", config],
                    stdout=log,
                    stderr=log,
                    env=environment(),
                    start_new_session=True,
                )
            try:
                wait_until(containerd.answers, f"containerd in {self.folder}", timeout_seconds=60)
                yield containerd
            finally:
                server.terminate()
                server.wait()

    def open_blob(self, digest: str) -> BinaryIO:
        return (self.root / "io.containerd.content.v1.content/blobs" / digest.replace(":", "/")).open("rb")

    def keys(self) -> dict[str, str]:
        """Image name to what it was built from."""
        path = self.folder / "keys.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def set_key(self, image: str, key: str) -> None:
        path = self.folder / "keys.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**self.keys(), image: key}, indent=1))
        fresh.replace(path)

    def clone(self, target: Path) -> None:
        """A second root with the same images, which costs no space, and a directory for each layer.

        Blobs are never rewritten and are linked; the databases are, so they are copied. The target must lie on the same
        file system.
        """
        with locked(self.folder / "lock"):
            layers = self.shared_layers()
            shutil.copytree(
                self.root,
                target,
                symlinks=True,
                copy_function=link_or_copy,
                ignore=lambda folder, names: names if Path(folder) == self.root / SNAPSHOTS else [],
            )
            for number, layer in layers.items():
                clone = target / SNAPSHOTS / number
                (clone / "work").mkdir(parents=True)
                (clone / "fs").symlink_to(layer / "fs")
                (clone / IN_USE).hardlink_to(layer / IN_USE)
            # containerd's own identity
            (target / "io.containerd.grpc.v1.introspection/uuid").unlink(missing_ok=True)

    def shared_layers(self) -> dict[str, Path]:
        """Layers of the images as folders that stay while a clone lives, whatever the store's containerd drops.

        A layer has tens of thousands of files: they are linked once, not for every node. A clone holds a hard link to
        the layer's file IN_USE; a layer that the store dropped and no clone holds goes.
        """
        shared = self.folder / "layers"
        shared.mkdir(exist_ok=True)
        # containerd counts from 1 again where the store was thrown away
        layers = {f"{path.name}-{path.stat().st_ino}": path for path in (self.root / SNAPSHOTS).iterdir()}
        for path in shared.iterdir():
            if path.name not in layers and not is_in_use(path):
                shutil.rmtree(path)
        for name, layer in layers.items():
            if not (shared / name / IN_USE).exists():  # it is made last
                shutil.rmtree(shared / name, ignore_errors=True)
                run("cp", "-al", layer, shared / name)
                (shared / name / IN_USE).touch()
        return {layer.name: shared / name for name, layer in layers.items()}


def is_in_use(layer: Path) -> bool:
    return (layer / IN_USE).exists() and (layer / IN_USE).stat().st_nlink > 1


def link_or_copy(source: str, target: str) -> None:
    if source.endswith(".db"):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)
