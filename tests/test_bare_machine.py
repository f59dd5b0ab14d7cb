"""`make test` on a machine with nothing on it: no Go, no privileges, no cache of an earlier run."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
BESIDE_THE_CLUSTER = ("e2e", "charts")
"""Rooms whose other tests build programs and start a cluster: what belongs to those must not reach their unit tests."""
BUILDERS = ("go", "docker", "helm", "debootstrap")
"""Programs that the tests of a cluster call. Here each only writes down that it was called."""


@pytest.mark.slow
def test_unit_tests_beside_the_cluster_build_nothing_and_need_no_privilege(tmp_path: Path) -> None:
    called, home = tmp_path / "called", tmp_path / "home"
    home.mkdir()
    programs = traps(tmp_path / "bin", called)
    bare = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *unit_tests()]
    done = subprocess.run([*unprivileged(), *command], cwd=CHECKOUT, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not called.exists(), called.read_text()
    assert not (home / ".cache" / "rljob").exists()


def test_no_other_unit_test_can_build_anything() -> None:
    """Programs and images are built by the cluster's room alone."""
    files = [
        file for path in paths_tested() if not path.startswith("e2e/") for file in python_of_tests(CHECKOUT / path)
    ]
    assert len(files) > 100
    builds = re.compile(r"^\s*(?:from|import) (?:e2e|charts\.tests)\b", re.M)
    assert [str(file.relative_to(CHECKOUT)) for file in files if builds.search(file.read_text())] == []


def python_of_tests(folder: Path) -> Iterator[Path]:
    """Tests, what they are made of, and fixtures."""
    for file in folder.rglob("*.py"):
        if "tests" in file.relative_to(CHECKOUT).parts or file.name.startswith("test_") or file.name == "conftest.py":
            yield file


def paths_tested() -> list[str]:
    """What `make test` runs."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    paths: list[str] = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    return paths


def unit_tests() -> list[str]:
    """The folders of those rooms that `make test` runs."""
    result = [path for path in paths_tested() if path.split("/")[0] in BESIDE_THE_CLUSTER]
    assert {path.split("/")[0] for path in result} == set(BESIDE_THE_CLUSTER)
    return result


def traps(folder: Path, called: Path) -> Path:
    """A folder of programs, first on the PATH."""
    folder.mkdir()
    for name in BUILDERS:
        trap = folder / name
        trap.write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\nexit 1\n')
        trap.chmod(0o755)
    return folder


def unprivileged() -> list[str]:
    """Before a command: without root's capabilities it mounts nothing, adds no network and installs no package."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    assert setpriv, "install util-linux: as root, this test gives root's capabilities away"
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
