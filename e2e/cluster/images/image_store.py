"""A folder of images, kept by a containerd that runs only while it is asked something."""

import json
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
        """A second root with the same images, which costs no space: blobs and layers are never rewritten.

        The databases are, so they are copied. The target must lie on the same file system.
        """
        with locked(self.folder / "lock"):
            target.mkdir(parents=True)
            run("cp", "-al", f"{self.root}/.", target)
            for database in target.rglob("*.db"):
                copy = database.with_suffix(".copy")
                shutil.copyfile(database, copy)
                copy.replace(database)
            # containerd's own identity
            (target / "io.containerd.grpc.v1.introspection/uuid").unlink(missing_ok=True)
