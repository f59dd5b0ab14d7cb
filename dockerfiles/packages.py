"""The Python packages of the images: `python -m dockerfiles.packages pin` writes them down with the hashes of their
files, and `python -m dockerfiles.packages sbom FOLDER` as a bill of materials for each image.

    pyproject.toml, constraints.txt -> pin -> dockerfiles/requirements/IMAGE.txt -> what the Dockerfile installs
                                                                               `-> sbom -> IMAGE.cdx.json

uv asks the registry for both.  An image holds what its file names, and nothing else but its base and our wheel: a
package whose file has another hash is not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
REQUIREMENTS = CHECKOUT / "dockerfiles/requirements"
UV_VERSION = "0.13.9"
PYTHON_VERSION = "3.11"
"""The oldest that an image may have."""


@dataclass(frozen=True)
class Packages:
    """What is installed in one image, or in the stages that build all of them."""

    extras: tuple[str, ...] = ()
    """Of pyproject.toml."""
    besides: tuple[str, ...] = ()
    """Requirements that no extra has."""
    overrides: str | None = None
    """A file below the checkout, of what packages ask for and do not get."""


def images() -> Mapping[str, Packages]:
    """By the name of the Dockerfile."""
    worker = ("worker", "adapters", "objectstore")
    return {
        "operator": Packages(("operator",)),
        "databuffer": Packages(("databuffer",)),
        "worker": Packages(worker),
        # torch's own libraries are linked against this one; it has no part that runs on a device
        "worker-cpu": Packages(worker, ("nvidia-cuda-runtime",), "dockerfiles/cpu-overrides.txt"),
        "serve": Packages((*worker, "serve"), ("nvidia-cuda-runtime",), "dockerfiles/cpu-overrides.txt"),
    }


def tools() -> Packages:
    """What installs the packages of an image, and what makes our wheel."""
    return Packages(besides=(f"uv=={UV_VERSION}", *_project()["build-system"]["requires"]))


def pin(folder: Path = REQUIREMENTS) -> None:
    """Write a file for each image, and one for the tools: versions as constraints.txt has them, with all hashes."""
    folder.mkdir(exist_ok=True)
    for name, packages in {**images(), "tools": tools()}.items():
        _pin(packages, folder / f"{name}.txt")


def requirements(text: str) -> list[str]:
    """The lines of a requirements file without their hashes: `aiohttp==3.14.5 ; sys_platform == 'linux'`."""
    return [line.rstrip("\\ ") for line in text.splitlines() if line and not line.startswith((" ", "#"))]


def sbom(name: str, folder: Path = REQUIREMENTS) -> dict[str, Any]:
    """What the Dockerfile of this name installs, by its file in `folder`, in CycloneDX: versions,
    hashes, and what asks for what.

    Raises ValueError when it would name other packages than the image has.
    """
    packages, lines = images()[name], requirements((folder / f"{name}.txt").read_text())
    with tempfile.TemporaryDirectory(prefix="sbom") as scratch:
        project = Path(scratch)
        (project / "pyproject.toml").write_text(_as_project(name, packages, lines))
        _uv("lock", "--quiet", folder=project)
        _uv("export", "--quiet", "--frozen", "--format", "cyclonedx1.5", "--output-file", "bom.json", folder=project)
        bom: dict[str, Any] = json.loads((project / "bom.json").read_text())
    named = {f"{each['name']}=={each['version']}" for each in bom["components"]}
    installed = {line.partition(" ")[0] for line in lines}
    if named != installed:
        raise ValueError(f"{name}: the bill and the image differ in {', '.join(sorted(named ^ installed))}")
    return bom


def write_sboms(folder: Path) -> None:
    """One for each image."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in images():
        (folder / f"rljob-{name}.cdx.json").write_text(json.dumps(sbom(name), indent=1) + "\n")


def _pin(packages: Packages, path: Path) -> None:
    options = [word for extra in packages.extras for word in ("--extra", extra)]
    options += [] if packages.overrides is None else ["--override", packages.overrides]
    sources = [*(["pyproject.toml"] if packages.extras else []), *(["-"] if packages.besides else [])]
    _uv(
        *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--generate-hashes"),
        *("--universal", "--python-version", PYTHON_VERSION, "--constraint", "constraints.txt"),
        *options,
        *sources,
        *("--output-file", str(path)),
        input="\n".join(packages.besides),
    )


def _as_project(name: str, packages: Packages, lines: Sequence[str]) -> str:
    """A project that needs just these, for what uv tells only of projects; what they ask for is among them."""
    project, settings = _project()["project"], _project()["tool"]["uv"]
    overrides = list(settings["override-dependencies"])
    if packages.overrides is not None:
        overrides += (CHECKOUT / packages.overrides).read_text().splitlines()
    return f"""[project]
name = "rljob-{name}-image"
version = "{project["version"]}"
requires-python = "{project["requires-python"]}"
dependencies = {json.dumps(lines)}

[tool.uv]
environments = {json.dumps(settings["environments"])}
override-dependencies = {json.dumps(overrides)}
"""


def _project() -> dict[str, Any]:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def _uv(*words: str, folder: Path = CHECKOUT, input: str = "") -> None:
    """Raises CalledProcessError; what uv says of it is on stderr."""
    program = Path(sys.executable).with_name("uv")
    subprocess.run((program, *words), cwd=folder, input=input, text=True, check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pin"]:
            pin()
        case ["sbom", where]:
            write_sboms(Path(where))
        case _:
            sys.exit("usage: python -m dockerfiles.packages pin | sbom FOLDER")
