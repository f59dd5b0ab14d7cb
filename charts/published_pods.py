"""`python -m charts.published_pods`: what Kubernetes publishes as examples of its Pod Security Standards, as one table.

The module k8s.io/pod-security-admission holds a file for each pod, level and version, thousands of which repeat each
other. The table has every pod once, with the versions in which each level admits or refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.commands import run
from rljob_worker.built_once import cache_root

MODULE = "k8s.io/pod-security-admission"
VERSION = "v0.37.2"
TABLE = Path(__file__).parents[1] / "operator/rljob_operator/manifests/pod_security/tests/published_pods.json"
LEVELS = ("baseline", "restricted")

Pod = dict[str, Any]


def published() -> Path:
    """The folder of the files, fetched now if it is not there."""
    result = json.loads(run("go", "mod", "download", "-json", f"{MODULE}@{VERSION}", cwd=cache_root()))
    return Path(result["Dir"]) / "test" / "testdata"


def table(folder: Path) -> str:
    """The table as JSON, a pod a line."""
    rows: dict[str, dict[str, set[int]]] = {}
    for level, minor, verdict, pod in _files(folder):
        rows.setdefault(json.dumps(pod, sort_keys=True), {}).setdefault(f"{level} {verdict}", set()).add(minor)
    lines = (
        f'{{"pod": {pod}, "verdicts": {json.dumps({key: _ranges(result[key]) for key in sorted(result)})}}}'
        for pod, result in sorted(rows.items())
    )
    about = f"{MODULE} {VERSION}, test/testdata, Apache License 2.0, The Kubernetes Authors"
    return f'{{"source": {json.dumps(about)}, "pods": [\n' + ",\n".join(lines) + "\n]}\n"


def _files(folder: Path) -> Iterator[tuple[str, int, str, Pod]]:
    """Level, minor version, `pass` or `fail`, and what of the pod the standards look at."""
    for path in sorted(folder.glob("*/v1.*/*/*.yaml")):
        level, version, verdict, _ = path.relative_to(folder).parts
        read = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        for container in (*read["spec"].get("initContainers", ()), *read["spec"]["containers"]):
            container["image"] = "pause"  # no standard looks at it
        annotations = read["metadata"].get("annotations")
        pod = {**({"metadata": {"annotations": annotations}} if annotations else {}), "spec": read["spec"]}
        yield level, int(version.removeprefix("v1.")), verdict, pod


def _ranges(minors: Iterable[int]) -> list[list[int]]:
    """First and last of each run of versions."""
    result: list[list[int]] = []
    for minor in sorted(minors):
        if result and result[-1][1] == minor - 1:
            result[-1][1] = minor
        else:
            result.append([minor, minor])
    return result


if __name__ == "__main__":
    TABLE.write_text(table(published()))
