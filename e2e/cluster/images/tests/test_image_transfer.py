"""Which parts of an image go over, and the archive they go in."""

import io
import json
import tarfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from e2e.cluster.images.containerd import StoredImage
from e2e.cluster.images.image_store import ImageStore
from e2e.cluster.images.image_transfer import blobs_of, index_of, kept, write_layout

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def put(store: ImageStore, content: bytes) -> dict[str, object]:
    digest = sha256(content).hexdigest()
    folder = store.root / "io.containerd.content.v1.content/blobs/sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def image(store: ImageStore, *layers: bytes) -> tuple[StoredImage, bytes]:
    manifest = json.dumps({"config": put(store, b"{}"), "layers": [put(store, layer) for layer in layers]}).encode()
    return StoredImage("localhost/worker:dev", MANIFEST_TYPE, str(put(store, manifest)["digest"])), manifest


def test_an_images_blobs_are_its_manifest_its_config_and_its_layers(tmp_path: Path) -> None:
    stored, manifest = image(ImageStore(tmp_path), b"base", b"code!")
    assert [blob.num_bytes for blob in blobs_of(stored, manifest)] == [len(manifest), 2, 4, 5]


def test_the_archive_holds_only_what_is_wanted_under_its_digest(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    stored, manifest = image(store, b"base", b"code!")
    manifest_blob, _, _, code = blobs_of(stored, manifest)
    output = io.BytesIO()
    write_layout(store, output, index_of(stored, len(manifest)), [manifest_blob, code])
    with tarfile.open(fileobj=io.BytesIO(output.getvalue())) as layout:
        contents = {entry.name: layout.extractfile(entry).read() for entry in layout}  # type: ignore[union-attr]
    names = {f"blobs/{blob.digest.replace(':', '/')}" for blob in (manifest_blob, code)}
    assert set(contents) == {"oci-layout", "index.json"} | names
    assert contents[f"blobs/sha256/{sha256(b'code!').hexdigest()}"] == b"code!"
    named = json.loads(contents["index.json"])["manifests"][0]
    assert named["annotations"]["io.containerd.image.name"] == "localhost/worker:dev"
    assert named["digest"] == stored.digest


def test_an_image_for_several_platforms_is_refused() -> None:
    stored = StoredImage("localhost/worker:dev", "application/vnd.oci.image.index.v1+json", "sha256:0")
    with pytest.raises(ValueError, match="index of several platforms"):
        blobs_of(stored, b'{"manifests": []}')


class Destination:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ctr(self, *words: str) -> str:
        self.asked.append(" ".join(words))
        return ""


def test_the_image_of_before_is_kept_until_the_next_is_there_or_has_failed() -> None:
    """Else what both share is collected while it is unpacked."""
    before = StoredImage("localhost/worker:dev", MANIFEST_TYPE, "sha256:0")
    for error in (None, RuntimeError("receiver gave up")):
        destination = Destination()
        with suppress(RuntimeError), kept(destination, before):  # type: ignore[arg-type]
            destination.asked.append("import")
            if error:
                raise error
        assert destination.asked == [
            "images tag --force localhost/worker:dev localhost/worker:dev-former",
            "import",
            "images rm localhost/worker:dev-former",
        ]


def test_where_there_was_no_image_before_nothing_is_kept() -> None:
    destination = Destination()
    with kept(destination, None):  # type: ignore[arg-type]
        pass
    assert destination.asked == []
