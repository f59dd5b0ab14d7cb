"""Numbers that are none end a job where they arise, with stage, row and token."""

import math
import sys
import types

import numpy as np
import pytest
import torch

from rljob_api.tests.builders import make_plan
from rljob_worker.algorithms.advantages import Advantages
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.finite import first_not_finite
from rljob_worker.stages.advantage import Advantage
from rljob_worker.stages.scoring import LogProbs, Values
from rljob_worker.stages.stage import Resources, StageContext

LENGTHS = [2, 0, 3, 1]
NUM_TOKENS = 6
CONTEXT = StageContext(1, 0, None, str, lambda tensor: tensor, 0, 1)


def of_tokens(**at):
    """One number per token, 0 but where said: `of_tokens(at_4=nan)`."""
    values = np.zeros(NUM_TOKENS, np.float32)
    for name, value in at.items():
        values[int(name.removeprefix("at_"))] = value
    return Column.from_lengths(values, LENGTHS)


def make_rows(rewards=(0, 1, 2, 3), **columns):
    """Rows 9 to 12, as people count them."""
    ids = Column.from_lengths(np.ones(NUM_TOKENS, np.int64), LENGTHS)
    mask = Column.from_lengths(np.ones(NUM_TOKENS, np.uint8), LENGTHS)
    all_of_them = {"prompt_ids": ids, "response_ids": ids, "response_mask": mask, **columns}
    return Batch.build(np.arange(8, 12), np.arange(4, 6).repeat(2), all_of_them | {"rewards": Column.fixed(rewards)})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_is_reported_with_its_row_and_token(value):
    row_ids = np.arange(8, 12)
    # tokens 0 1 are row 9's, row 10 has none, 2 3 4 are row 11's
    assert repr(first_not_finite(of_tokens(at_1=value), row_ids)) == f"('row 9, token 2', {value})"
    assert repr(first_not_finite(of_tokens(at_2=value, at_5=1), row_ids)) == f"('row 11, token 1', {value})"
    assert repr(first_not_finite(of_tokens(at_4=value, at_5=value), row_ids)) == f"('row 11, token 3', {value})"
    assert repr(first_not_finite(Column.fixed([0.0, 1.0, value, value]), row_ids)) == f"('row 11', {value})"


def test_finite_numbers_of_any_kind_are_fine():
    for numbers in ([1.0, -3e38], np.array([1, 2], np.uint8), [True, False], np.empty(0)):
        assert first_not_finite(Column.fixed(numbers), np.arange(2)) is None
    assert first_not_finite(of_tokens(), np.arange(4)) is None


class Scoring:
    """An engine that gives these scores."""

    def __init__(self, scores):
        self._scores = scores

    def log_probs(self, batch):
        return self._scores

    def values(self, batch):
        return self._scores


@pytest.mark.parametrize(
    ("run", "model", "words"),
    [
        (LogProbs, "reference", "model reference gives row 11, token 3 the log-probability nan"),
        (Values, "critic", "model critic gives row 11, token 3 the value nan"),
    ],
)
def test_scores_that_are_no_numbers_name_the_model_and_the_token(run, model, words):
    plan = make_plan("algorithm.name=PPO")
    name = next(stage.name for stage in plan.stages if stage.run == run.__name__ and stage.models == (model,))

    def scored(scores):
        stage = run(plan.stage(name), Resources(plan, {model: Scoring(scores)}, {}))
        return stage.run(make_rows(), CONTEXT).batch

    with pytest.raises(BadData, match=f"stage {name}: {words}"):
        scored(of_tokens(at_4=math.nan))
    assert scored(of_tokens()).columns


SMALL = ("data.batchSize=2", "algorithm={name: GRPO, groupSize: 2, kl: {coefficient: 0}}")


def advantages_of(rows, *overrides):
    plan = make_plan(*SMALL, *overrides)
    stage = Advantage(plan.stage("advantage"), Resources(plan, {}, {}))
    return stage.run(rows, CONTEXT).batch["advantages"].values


def test_rewards_that_are_no_numbers_are_refused_whoever_wrote_them():
    with pytest.raises(BadData, match="stage advantage: the reward of row 12 is inf, and rewards are finite"):
        advantages_of(make_rows((0, 1, 2, math.inf)))


def test_advantages_that_are_no_numbers_name_the_estimator(monkeypatch):
    zeros = torch.zeros(NUM_TOKENS, dtype=torch.float64)
    module = types.ModuleType("users_estimator")
    module.estimate = lambda samples, options, reduce: Advantages(zeros)
    monkeypatch.setitem(sys.modules, "users_estimator", module)
    mine = "algorithm.advantage={estimator: 'users_estimator:estimate'}"
    assert not advantages_of(make_rows(), mine).any()
    zeros[4] = 1e39  # more than Float32 has
    with pytest.raises(BadData, match="estimator users_estimator:estimate gives row 11, token 3 the advantage inf"):
        advantages_of(make_rows(), mine)
