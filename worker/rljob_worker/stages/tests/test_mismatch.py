"""Which optimizer steps of a step tell how far the trainer is from the rollout: those whose weights drew the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import Scalars, total
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.update import UpdatePolicy

PLAN = make_plan(
    "data.batchSize=2", "algorithm={name: GRPO, groupSize: 2, updateEpochs: 2}", "training.miniBatchRows=2"
)


class FakeTrainEngine:
    """Notes whether each update is asked for the mismatch."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def update(self, batch: Batch, objective: Any, *, reference: Any = None) -> Scalars:
        self.asked.append("rollout_log_probs" in objective.columns)
        return {"update/skipped_total": total(0.0)}


def updated(columns: Sequence[str]) -> tuple[list[bool], set[str]]:
    """Update on two mini-batches in two epochs: which updates are asked, and which figures the stage reports."""
    engine = FakeTrainEngine()
    tokens = Column.from_lengths(np.ones(8, np.float32), [2, 2, 2, 2])
    batch = Batch.build(
        np.arange(4), np.arange(4) // 2, dict.fromkeys(["response_mask", "advantages", *columns], tokens)
    )
    stage = next(stage for stage in PLAN.stages if stage.run == "UpdatePolicy")
    resources = Resources(PLAN, dict.fromkeys(["actor", "reference"], engine), {})
    context = StageContext(step=1, seed=3, job=PLAN.spec, decode=str, reduce=lambda x: x, dp_rank=0, dp_size=1)
    metrics = UpdatePolicy(stage, resources).run(batch, context).metrics
    return engine.asked, {name for name in metrics if name.startswith("mismatch/")}


def test_without_old_log_probs_the_first_optimizer_step_tells() -> None:
    assert updated(["rollout_log_probs"]) == ([True, False, False, False], set())


def test_with_old_log_probs_the_stage_tells_of_all_rows() -> None:
    asked, reported = updated(["rollout_log_probs", "old_log_probs"])
    assert asked == [False] * 4
    assert {"mismatch/k1", "mismatch/k3", "mismatch/ratio_max"} <= reported


@pytest.mark.parametrize("columns", [[], ["old_log_probs"]])
def test_rows_that_no_rollout_of_ours_drew_are_not_compared(columns: list[str]) -> None:
    assert updated(columns) == ([False] * 4, set())
