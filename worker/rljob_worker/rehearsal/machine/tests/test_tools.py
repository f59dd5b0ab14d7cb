"""What a machine lacks besides torch is said before torch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_api.tests.builders import TWO_GROUPS, make_plan
from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.machine.tools import check_serve, tool_findings
from rljob_worker.tests.documents import plan_of

COMPILED = "training.compile=true"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with a compiler in it, for PATH."""
    (tmp_path / "g++").touch(mode=0o755)
    return tmp_path


def lacking(
    *overrides: str,
    groups: tuple[str, ...] = ("train",),
    path: str | Path = "",
    installed: str = "",
    **environment: str,
) -> list[str]:
    arguments = make_plan(*overrides), groups, {"PATH": str(path), **environment}, installed.split().__contains__
    problems = [tool_finding.problem for tool_finding in tool_findings(*arguments)]
    assert all(problem.fix.endswith(".") for problem in problems)
    return [f"{problem.path}: {problem.message}; {problem.fix}" for problem in problems]


def test_a_job_that_compiles_nothing_needs_nothing() -> None:
    assert lacking() == []


def test_a_compiler_is_looked_for(tools: Path) -> None:
    (result,) = lacking(COMPILED)
    assert result.startswith("spec.training.compile: torch compiles layers with g++, which is not installed here; ")
    assert lacking(COMPILED, path=tools) == []
    assert "with icpx, which" in lacking(COMPILED, path=tools, CXX="icpx")[0]
    assert lacking(COMPILED, path=tools, CXX=str(tools / "g++")) == []


def test_the_header_that_torch_compiles_extensions_with_is_looked_for(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tools))
    (result,) = lacking(COMPILED, path=tools)
    assert f"with {tools}/Python.h (of the package python3-dev), which is not installed here" in result
    (tools / "Python.h").touch()
    assert lacking(COMPILED, path=tools) == []


@pytest.mark.parametrize(
    ("asked", "package", "field", "fix"),
    [
        ("training.engine=Megatron", "megatron", "spec.training.engine", "`pip install 'rljob[megatron]'` brings it"),
        ("rollout.engine=VLLM", "vllm", "spec.rollout.engine", "`make vllm` in a checkout makes an environment"),
        ("data.train.0.path=s3://b/train.jsonl", "obstore", "spec.data.train[0].path", "rljob[objectstore]"),
        ("models.0.path=gs://b/model", "obstore", "spec.models[0].path", "rljob[objectstore]"),
        ("storage={objectStore: {uri: 's3://b/runs'}}", "obstore", "spec.storage.objectStore.uri", "[objectstore]"),
        ("models.0.adapter={rank: 4}", "peft", "spec.models[0].adapter", "`pip install 'rljob[adapters]'` brings it"),
    ],
)
def test_packages_of_an_extra_are_looked_for(asked: str, package: str, field: str, fix: str) -> None:
    (result,) = lacking(asked)
    assert result.startswith(f"{field}: ") and fix in result
    assert lacking(asked, installed=package) == lacking(installed=package) == []


def test_vllm_is_looked_for_where_it_generates() -> None:
    """Who only trains has the image without it."""
    asked = "rollout.engine=VLLM", *TWO_GROUPS
    assert lacking(*asked, groups=("train",)) == []
    assert len(lacking(*asked, groups=("rollout",))) == len(lacking(*asked, groups=("train", "rollout"))) == 1


def test_ray_that_is_not_installed_names_the_extra() -> None:
    served = plan_of(services=[{"name": "judge", "run": "mine:app"}])
    with pytest.raises(InvalidJob, match=r"not installed: ray, starlette; `pip install 'rljob\[serve\]'` brings them"):
        check_serve(served, lambda package: None)
    check_serve(plan_of(), lambda package: None)
    check_serve(served, lambda package: package)
