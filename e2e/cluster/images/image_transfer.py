"""An image from a store to a containerd: only the blobs that the other lacks."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from e2e.cluster.commands import CommandFailed, environment, failure
from e2e.cluster.images.containerd import NAMESPACE, Containerd, StoredImage
from e2e.cluster.images.image_store import ImageStore

LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'


@dataclass(frozen=True, slots=True)
class Blob:
    digest: str
    num_bytes: int


def blobs_of(image: StoredImage, manifest: bytes) -> list[Blob]:
    """Manifest, config and layers."""
    parsed = json.loads(manifest)
    if "layers" not in parsed:
        raise ValueError(f"{image.name} is an index of several platforms; build it for one")
    parts = [parsed["config"], *parsed["layers"]]
    return [Blob(image.digest, len(manifest)), *(Blob(part["digest"], part["size"]) for part in parts)]


def index_of(image: StoredImage, num_manifest_bytes: int) -> bytes:
    descriptor: dict[str, Any] = {
        "mediaType": image.media_type,
        "digest": image.digest,
        "size": num_manifest_bytes,
        "annotations": {"io.containerd.image.name": image.name},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [descriptor]}).encode()


def copy_image(store: ImageStore, image: StoredImage, destination: Containerd) -> int:
    """Brings an image up to date at the destination; returns how many bytes went over."""
    present = destination.images().get(image.name)
    if present is not None and present.digest == image.digest:
        return 0
    with store.open_blob(image.digest) as file:
        manifest = file.read()
    here = destination.blobs()
    wanted = [blob for blob in blobs_of(image, manifest) if blob.digest not in here]
    with kept(destination, present):
        send(store, destination, index_of(image, len(manifest)), wanted)
    return sum(blob.num_bytes for blob in wanted)


@contextmanager
def kept(destination: Containerd, image: StoredImage | None) -> Iterator[None]:
    """Nothing of the image of before is collected meanwhile: an import takes its name first, and only then unpacks what
    both share, which nobody's is in between."""
    if image is None:
        yield
        return
    former = f"{image.name}-former"
    destination.ctr("images", "tag", "--force", image.name, former)
    try:
        yield
    finally:
        destination.ctr("images", "rm", former)


def send(store: ImageStore, destination: Containerd, index: bytes, blobs: list[Blob]) -> None:
    """Streams an OCI layout that holds just these blobs into the destination's import."""
    words = ["ctr", "--address", str(destination.socket), "--namespace", NAMESPACE, "images", "import", "-"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
    ) as receiver:
        assert receiver.stdin and receiver.stdout
        # a receiver that gives up says why below
        with suppress(BrokenPipeError):
            write_layout(store, receiver.stdin, index, blobs)
            receiver.stdin.close()
        said = receiver.stdout.read()
    if receiver.returncode != 0:
        raise CommandFailed(failure(words, receiver.returncode, said, b""))


def write_layout(store: ImageStore, output: IO[bytes], index: bytes, blobs: list[Blob]) -> None:
    with tarfile.open(fileobj=output, mode="w|", bufsize=1 << 20) as layout:
        for name, content in (("oci-layout", LAYOUT), ("index.json", index)):
            add_entry(layout, name, len(content), io.BytesIO(content))
        for blob in blobs:
            with store.open_blob(blob.digest) as file:
                add_entry(layout, f"blobs/{blob.digest.replace(':', '/')}", blob.num_bytes, file)


def add_entry(layout: tarfile.TarFile, name: str, num_bytes: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = num_bytes
    layout.addfile(entry, content)
