"""Which optimizer steps of a step tell how far the trainer is from the rollout: those whose weights drew the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import Scalars, total
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.update import UpdatePolicy, token_ages

SMALL = ("data.batchSize=2", "algorithm={name: GRPO, groupSize: 2, updateEpochs: 2}", "training.miniBatchRows=2")
PLAN = make_plan(*SMALL)
STALE = make_plan(*SMALL, "workerGroups=[{name: train}, {name: rollout}]", "rollout.maxStaleness=1")


class FakeTrainEngine:
    """Notes whether each update is asked for the mismatch, and for that of each age."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.asked_by_age: list[bool] = []

    def update(self, batch: Batch, objective: Any, *, reference: Any = None) -> Scalars:
        self.asked.append("rollout_log_probs" in objective.columns)
        self.asked_by_age.append("token_versions" in objective.columns)
        return {"update/skipped_total": total(0.0)}


def update(columns: Sequence[str], plan: Plan, step: int = 1) -> tuple[FakeTrainEngine, Scalars]:
    """Update on two mini-batches in two epochs: what updates are asked for, and `mismatch/*` that the stage reports."""
    engine = FakeTrainEngine()
    tokens = Column.from_lengths(np.ones(8, np.float32), [2, 2, 2, 2])
    versions = Column.from_lengths(np.array([4, 4, 3, 3, 2, 2, 1, 1]), [2, 2, 2, 2])
    ragged = dict.fromkeys(["response_mask", "advantages", *columns], tokens)
    ragged |= {"token_versions": versions} if "token_versions" in columns else {}
    ragged |= {"policy_version": Column.fixed(np.array([4, 3, 2, 1]))} if "policy_version" in columns else {}
    rows = (step - 1) * 4 + np.arange(4)
    batch = Batch.build(rows, rows // 2, ragged)
    stage = next(stage for stage in plan.stages if stage.run == "UpdatePolicy")
    resources = Resources(plan, dict.fromkeys(["actor", "reference"], engine), {})
    context = StageContext(step=step, seed=3, job=plan.spec, decode=str, reduce=lambda x: x, dp_rank=0, dp_size=1)
    metrics = UpdatePolicy(stage, resources).run(batch, context).metrics
    return engine, {name: scalar for name, scalar in metrics.items() if name.startswith("mismatch/")}


def updated(columns: Sequence[str]) -> tuple[list[bool], set[str]]:
    """Which updates are asked, and which figures the stage reports."""
    engine, metrics = update(columns, PLAN)
    return engine.asked, set(metrics)


def test_without_old_log_probs_the_first_optimizer_step_tells() -> None:
    assert updated(["rollout_log_probs"]) == ([True, False, False, False], set())


def test_with_old_log_probs_the_stage_tells_of_all_rows() -> None:
    asked, reported = updated(["rollout_log_probs", "old_log_probs"])
    assert asked == [False] * 4
    assert {"mismatch/k1", "mismatch/k3", "mismatch/ratio_max"} <= reported


@pytest.mark.parametrize("columns", [[], ["old_log_probs"]])
def test_rows_that_no_rollout_of_ours_drew_are_not_compared(columns: list[str]) -> None:
    assert updated(columns) == ([False] * 4, set())


@pytest.mark.parametrize("versions", ["token_versions", "policy_version"])
def test_tokens_are_counted_by_their_age_where_generation_is_ahead(versions: str) -> None:
    # step 5 begins with version 4; a token of version 1 is 3 behind, and counts among the oldest: 1 + 1
    columns = ["rollout_log_probs", "old_log_probs", versions]
    engine, metrics = update(columns, STALE, step=5)
    counts = {name: scalar.count for name, scalar in metrics.items() if "/age_" in name}
    assert counts == {
        f"mismatch/{name}/age_{age}": count for name in ("ratio_mean", "k3") for age, count in enumerate([2, 2, 4])
    }
    assert engine.asked_by_age == [False] * 4
    engine, metrics = update(["rollout_log_probs", versions], STALE, step=5)
    assert (engine.asked_by_age, metrics) == ([True, False, False, False], {})


def test_ages_are_not_reported_where_generation_is_never_ahead() -> None:
    columns = ["rollout_log_probs", "old_log_probs", "token_versions"]
    assert not any("/age_" in name for name in update(columns, PLAN, step=5)[1])
    assert not any("/age_" in name for name in update(columns[:2], STALE, step=5)[1])


def test_steps_in_which_a_critic_warms_up_make_no_token_older() -> None:
    """After two steps of warm-up the versions are 0, 3, 4, 5: of 0, 1, 2 and 3 updates."""
    groups = "workerGroups=[{name: train}, {name: rollout}]"
    plan = make_plan("algorithm={name: PPO, critic: {warmupSteps: 2}}", groups, "rollout.maxStaleness=1")
    versions = np.array([0, 3, 4])
    batch = Batch.build(np.arange(3), np.arange(3), {"token_versions": Column.from_lengths(versions, [1, 1, 1])})
    ages = {}
    for step in (3, 4, 5, 6):
        token_ages_of_step = token_ages(batch, plan.spec, step)
        assert token_ages_of_step is not None
        ages[step] = token_ages_of_step.of(torch.from_numpy(versions)).tolist()
    # at most two, and tokens of versions that are yet to come have none
    assert ages == {3: [0, 0, 0], 4: [1, 0, 0], 5: [2, 1, 0], 6: [2, 2, 1]}
