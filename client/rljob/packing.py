"""A folder's Python as a ConfigMap, which pods find as `spec.code`. Pure except for reading the folder."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from rljob.errors import ClusterError
from rljob.server import Object

MAX_BYTES = 1 << 20
"""What a ConfigMap holds."""
_OTHER_WAYS = "put it on a claim (spec.code.persistentVolumeClaim) or into an image on top of ours"


def packed_modules(folder: Path) -> dict[str, bytes]:
    """The modules of a folder by file name. Raises ClusterError for what a ConfigMap cannot carry."""
    if not folder.is_dir():
        raise ClusterError(f"--code {folder} is not a folder; name the one with the job's Python files")
    packages = sorted(path.name for path in folder.iterdir() if (path / "__init__.py").is_file())
    if packages:
        raise ClusterError(
            f"--code {folder} has packages ({', '.join(packages)}), which no ConfigMap holds; {_OTHER_WAYS}"
        )
    result = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py")) if path.is_file()}
    if not result:
        raise ClusterError(f"--code {folder} has no Python files; name the folder with the job's modules")
    size = sum(len(name) + len(text) for name, text in result.items())
    if size > MAX_BYTES:
        largest = max(result, key=lambda name: len(result[name]))
        words = f"--code {folder} has {size:,} bytes of Python, most of them in {largest}"
        raise ClusterError(f"{words}, and a ConfigMap holds {MAX_BYTES:,}; {_OTHER_WAYS}")
    return result


def config_map(name: str, namespace: str, modules: Mapping[str, bytes]) -> Object:
    """The manifest, of which no job is the owner yet."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "binaryData": {module: base64.b64encode(text).decode() for module, text in modules.items()},
        "immutable": True,
    }


def owned_by(job: Object) -> Object:
    """The reference by which an object goes with `job`, as the API server returned it."""
    metadata = job["metadata"]
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
