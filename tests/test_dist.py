"""What is published: its content, and the plain install of the wheel, tried as a new user would, away from here."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_worker.built_once import cache_root

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("client/rljob", "crds/rljob_api", "operator/rljob_operator", "worker/rljob_worker")
EXAMPLES = CHECKOUT / "examples"
UV = (sys.executable, "-m", "uv")
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source archive, and that. `make dist` says in RLJOB_DIST where it has built them."""
    if built := os.environ.get("RLJOB_DIST"):
        return Path(built)
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([*UV, "build", "--quiet", "--out-dir", folder, CHECKOUT], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("rljob-*.whl")
    return path


@pytest.fixture(scope="module")
def rljob(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command `rljob` of an environment that has the wheel and nothing else, run in a given folder."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([*UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    install = ("pip", "install", "--quiet", "--python", venv, "--constraint", CHECKOUT / "constraints.txt", wheel)
    subprocess.run([*UV, *install], check=True)

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(cwd), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [venv / "bin/rljob", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
        )

    return run


def test_the_wheel_holds_the_whole_program_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        sources = {name: archive.read(name).decode() for name in packed}
    assert packed == program_files()
    # nothing that is packed reaches for what is not
    assert [name for name, text in sources.items() if re.search(r"\brljob_\w+(\.\w+)*\.tests\b", text)] == []


def program_files() -> set[str]:
    """Paths inside the wheel."""
    roots = [CHECKOUT / package for package in PACKAGES]
    result = {path.relative_to(root.parent) for root in roots for path in root.rglob("*") if path.is_file()}
    examples = {f"rljob_worker/examples/{path.name}" for path in EXAMPLES.iterdir() if path.is_file()}
    return {str(path) for path in [*result, *map(Path, examples)] if not is_left_out(path)}


def is_left_out(path: Path) -> bool:
    return not {"tests", "__pycache__"}.isdisjoint(path.parts) or path.name in ("conftest.py", "test_examples.py")


def test_the_wheel_says_what_it_is_and_carries_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        (licence,) = (archive.read(name) for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
    assert licence == (CHECKOUT / "LICENSE").read_bytes() and b"Version 2.0, January 2004" in licence
    for line in ("License-Expression: Apache-2.0", "Author: rljob maintainers", "# rljob"):
        assert f"\n{line}\n" in metadata, line


def test_the_source_archive_holds_what_a_build_and_a_reader_need(dist: Path) -> None:
    (path,) = dist.glob("rljob-*.tar.gz")
    with tarfile.open(path) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    assert {name.partition("/")[0] for name in inside} == {
        ".gitignore", "LICENSE", "PKG-INFO", "README.md", "client", "constraints.txt", "crds", "docs", "examples",
        "operator", "pyproject.toml", "worker",
    }  # fmt: skip
    assert not [name for name in inside if name.startswith("examples/arithmetic/") or "__pycache__" in name]


@pytest.mark.slow
def test_a_plain_install_writes_checks_and_plans_a_job(rljob: Command, tmp_path: Path) -> None:
    help_text = rljob("--help", cwd=tmp_path)
    assert help_text.returncode == 0 and "\n  validate " in help_text.stdout, help_text.stderr
    assert rljob("new", "mine", cwd=tmp_path).returncode == 0
    refused = rljob("validate", "mine.yaml", cwd=tmp_path)
    assert refused.returncode == 64 and f"Put it at {tmp_path}/data/train.parquet" in refused.stderr
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.parquet").touch()
    accepted = rljob("validate", "mine.yaml", cwd=tmp_path).stdout
    assert accepted.startswith("mine.yaml: mine is valid\n  not looked at: ") and "'rljob[worker]'" in accepted
    plan = rljob("plan", "mine.yaml", "--svg", "dag.svg", cwd=tmp_path)
    assert plan.returncode == 0 and "Worker groups" in plan.stdout, plan.stderr
    assert (tmp_path / "dag.svg").read_text().lstrip().startswith("<svg")
    assert rljob("status", cwd=tmp_path).stdout == "no runs in runs\n"


@pytest.mark.slow
def test_an_example_comes_with_what_it_runs(rljob: Command, tmp_path: Path) -> None:
    assert rljob("new", "--example", "gsm8k-qwen3", cwd=tmp_path).returncode == 0
    here = (EXAMPLES / "gsm8k-qwen3.yaml").read_text().replace("examples/", "")  # it is run beside its data
    assert (tmp_path / "gsm8k-qwen3.yaml").read_text() == here
    refused = rljob("new", "--example", "arithmetic-grpo", cwd=tmp_path)
    assert refused.returncode == 64 and "pip install 'rljob[worker]' brings them" in refused.stderr
    assert "did you mean arithmetic-grpo?" in rljob("new", "--example", "aritmetic-grpo", cwd=tmp_path).stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("run", "mine.yaml"), ("launch", "mine.yaml"), ("export", "mine", "out")])
def test_what_needs_torch_names_the_extra_in_one_line(
    rljob: Command, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    rljob("new", "mine", cwd=tmp_path)
    done = rljob(*arguments, cwd=tmp_path)
    assert done.returncode == 64
    assert done.stderr.startswith(f"rljob: `rljob {arguments[0]}` needs packages that are not installed: ")
    assert "torch" in done.stderr and done.stderr.endswith("; pip install 'rljob[worker]' brings them\n")
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.slow
def test_an_example_runs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """As after `pip install 'rljob[worker]'`: the wheel first, then this environment's libraries in place of copies."""
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    subprocess.run([*UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    subprocess.run([*UV, "pip", "install", "--quiet", "--no-deps", "--python", venv, wheel], check=True)
    (own,) = venv.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    folder.mkdir()
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache_root().parent), "PATH": "/usr/bin:/bin"}

    def rljob(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [venv / "bin/rljob", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    assert (made := rljob("new", "--example", "arithmetic-grpo")).returncode == 0, made.stderr
    assert (folder / "arithmetic/model/model.safetensors").is_file()
    short = ("--set", "stop.steps=1", "--set", "data.batchSize=4", "--set", "validation.maxRows=8")
    done = rljob("run", "arithmetic-grpo.yaml", *short)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded after 1 of 1 steps" in done.stdout
