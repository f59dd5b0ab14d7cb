"""Parts that other packages bring by entry point, and what is said of those that cannot be had."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.catalogue.optimizers import OPTIMIZERS, DeclaredOptimizer
from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.tests.builders import problems
from rljob_api.tests.packages import installed, make_package
from rljob_api.v1alpha1 import EngineOptions
from rljob_api.vocabulary.problem import InvalidJobError

DECLARED = """
from rljob_api.catalogue.optimizers import DeclaredOptimizer, OptimizerState
SLOW = DeclaredOptimizer("Slow", (OptimizerState("speed"),), "their_optimizer:slow")
"""
NAMED = "training.optimizer.name=Slow"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    with installed(tmp_path):
        yield tmp_path
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


def test_a_package_brings_an_optimizer(site: Path) -> None:
    make_package(site, "their-optimizer", {"their_optimizer.py": DECLARED}, optimizers="Slow = their_optimizer:SLOW")
    assert list(OPTIMIZERS) == ["AdamW", "Slow"] and len(OPTIMIZERS) == 2
    assert "Slow" in OPTIMIZERS and "their_optimizer" not in sys.modules
    assert [state.name for state in OPTIMIZERS["Slow"].states] == ["speed"]
    assert OPTIMIZERS["Slow"] is OPTIMIZERS["Slow"]
    assert problems(NAMED) == []


def test_a_built_in_part_is_had_without_a_look_at_packages(site: Path) -> None:
    text = f"import sys, {OPTIMIZERS.__module__} as m; m.entry_points = None\n"
    text += (
        "from rljob_api.catalogue.optimizers import OPTIMIZERS; assert OPTIMIZERS['AdamW'] and 'AdamW' in OPTIMIZERS"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


@pytest.mark.parametrize(
    ("override", "path", "known"),
    [
        (NAMED, "spec.training.optimizer.name", "AdamW"),
        ("rollout.engine=SGLang", "spec.rollout.engine", "HTTP, Transformers, VLLM"),
        ("monitoring.trackers=[TensorBoard, Comet]", "spec.monitoring.trackers[1]", "MLflow, TensorBoard, WandB"),
    ],
)
def test_a_name_that_nobody_declares_is_refused_with_those_there_are(override: str, path: str, known: str) -> None:
    (problem,) = problems(override)
    assert problem.path == path and problem.fix == f"Known: {known}."
    assert problem.message.startswith("there is no such ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import not_there", "it cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("SLOW = 3", "their_optimizer:SLOW is not a DeclaredOptimizer of this name"),
        (DECLARED.replace('"Slow"', '"Fast"'), "their_optimizer:SLOW is not a DeclaredOptimizer of this name"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(site: Path, text: str, words: str) -> None:
    make_package(site, "their-optimizer", {"their_optimizer.py": text}, optimizers="Slow = their_optimizer:SLOW")
    with pytest.raises(InvalidJobError) as error:
        OPTIMIZERS["Slow"]
    assert f"rljob.optimizers Slow of the package their-optimizer 1.0: {words}" in str(error.value)
    (problem,) = problems(NAMED)
    assert (problem.path, problem.found) == ("spec.training.optimizer.name", '"Slow"') and words in problem.message
    assert OPTIMIZERS.find("Slow") is None
    assert problems() == [], "a job that does not name it runs"


def test_two_packages_that_bring_one_name_are_named(site: Path) -> None:
    for name in ("their-optimizer", "their-other"):
        module = name.replace("-", "_")
        make_package(site, name, {f"{module}.py": DECLARED}, optimizers=f"Slow = {module}:SLOW")
    (problem,) = problems(NAMED)
    assert "their-optimizer 1.0" in problem.message and "their-other 1.0" in problem.message


def test_a_package_does_not_replace_what_is_built_in(site: Path) -> None:
    make_package(site, "their-optimizer", {"their_optimizer.py": DECLARED}, optimizers="AdamW = their_optimizer:SLOW")
    assert isinstance(OPTIMIZERS["AdamW"], DeclaredOptimizer) and OPTIMIZERS["AdamW"].rule.startswith("rljob_worker")
    assert list(OPTIMIZERS) == ["AdamW"]


def test_vllm_has_all_options_there_are() -> None:
    assert ROLLOUT_ENGINES["VLLM"].options == tuple(EngineOptions.model_fields)


@pytest.mark.parametrize("engine", ROLLOUT_ENGINES.built_in.values(), ids=lambda item: item.name)
def test_options_of_engines_are_options(engine) -> None:
    assert set(engine.options) <= set(EngineOptions.model_fields)


def test_what_a_launcher_reads_takes_no_types_of_a_job() -> None:
    text = "import sys, rljob_api.catalogue.rollout_engines; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True)
