"""Images made from a folder, without a builder: one layer, a config and a manifest in a tar that containerd imports."""

import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from e2e.cluster.commands import run

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_image(root: Path, image: str, archive: Path, config: Mapping[str, Any] | None = None) -> None:
    """Writes the folder as an image; `config` holds OCI fields such as Entrypoint, User and Env."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        layer = Path(scratch) / "layer.tar"
        run("tar", "-C", root, "--sort=name", "--mtime=@0", "--numeric-owner", "-cf", layer, ".")
        with layer.open("rb") as file:
            layer_digest = file_digest(file, "sha256").hexdigest()
        text = image_config(layer_digest, config or {})
        config_name = f"{sha256(text).hexdigest()}.json"
        layer_name = f"{layer_digest}/layer.tar"
        manifest = [{"Config": config_name, "RepoTags": [image], "Layers": [layer_name]}]
        with tarfile.open(archive, "w") as output:
            output.add(layer, arcname=layer_name)
            add_bytes(output, config_name, text)
            add_bytes(output, "manifest.json", json.dumps(manifest).encode())


def image_config(layer_digest: str, config: Mapping[str, Any]) -> bytes:
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [PATH], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        # buildah wants an entry for each layer
        "history": [{"created_by": "a folder"}],
    }
    return json.dumps(document, sort_keys=True).encode()


def add_bytes(output: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    output.addfile(entry, io.BytesIO(content))
