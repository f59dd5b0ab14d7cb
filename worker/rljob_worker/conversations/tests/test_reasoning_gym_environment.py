"""Tasks of reasoning-gym as an environment, with the package itself, which takes long to import."""

from __future__ import annotations

import importlib
import sys

import pytest

from rljob_worker.conversations.targets.adapted_environment import AdaptedEnvironment
from rljob_worker.errors import InvalidJob

MODULE = "rljob_worker.conversations.reasoning_gym_environment"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_question_is_answered_and_scored() -> None:
    environment = AdaptedEnvironment(f"{MODULE}:ReasoningGym", {"dataset": "leg_counting", "tag": "answer"})
    question = environment.reset(3, {"source": "train"})["observation"]
    assert isinstance(question, str) and "how many legs" in question
    assert environment.reset(3, {})["observation"] == question != environment.reset(4, {})["observation"]
    # leg_counting of seed 3: 15 lobsters of 10, 14 ducks of 2, 8 beetles and 5 fireflies of 6, leeches and snakes of 0
    environment.reset(3, {})
    result = environment.step("that makes <answer>256</answer>")
    assert (result["reward"], result["done"]) == (1.0, True)
    # its score of an answer that is wrong, or not there, is small
    environment.reset(3, {})
    assert environment.step("<answer>257</answer>")["reward"] < 0.1
    assert environment.step("256")["reward"] < 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_column_chooses_the_data_set() -> None:
    environment = AdaptedEnvironment(f"{MODULE}:ReasoningGym", {})
    assert "how many legs" in environment.reset(3, {"dataset": "leg_counting"})["observation"]
    with pytest.raises(ValueError, match="name a data set of reasoning-gym"):
        environment.reset(3, {})


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(InvalidJob, match=r"pip install 'rljob\[reasoning-gym\]'"):
        importlib.import_module(MODULE)
