"""How many optimizer steps in a row may be skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, total
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.update import (
    SkippedSteps,
    UpdateCritic,
    UpdatePolicy,
    skipped_state,
    watched,
    with_skipped_state,
)


def updates(skipped: str) -> Iterator[Scalars]:
    """One per character, x for a skipped one; a rank of two says half."""
    return ({"update/skipped_total": total(0.5 * (item == "x"))} for item in skipped)


def test_skipped_steps_count_in_a_row_over_steps_and_checkpoints() -> None:
    begin = SkippedSteps("actor", limit=3)
    metrics, after = watched(updates("xx.x"), begin, step=1)
    assert (after.in_a_row, metrics["update/skipped_total"].value) == (1, 1.5)
    _, after = watched(updates("x"), with_skipped_state(begin, skipped_state(after)), step=2)
    assert after.in_a_row == 2
    assert watched(updates("."), after, step=3)[1] == begin
    with pytest.raises(BadData, match=r"step 3: 3 optimizer steps of actor in a row .* raise training.maxSkippedSteps"):
        watched(updates("x"), after, step=3)


def test_the_job_ends_with_the_update_that_was_one_too_many() -> None:
    made = updates("xx..")
    with pytest.raises(BadData):
        watched(made, SkippedSteps("actor", limit=2), step=1)
    assert len(list(made)) == 2  # the others were not asked for


class NeverSteps:
    """An engine all of whose optimizer steps are skipped."""

    num_updates = 0

    def update(self, batch: Batch, objective: Any, *, reference: Any = None) -> Scalars:
        self.num_updates += 1
        return {"update/skipped_total": total(1.0)}


@pytest.mark.parametrize(("run", "model"), [(UpdatePolicy, "actor"), (UpdateCritic, "critic")])
def test_an_update_ends_the_job_after_as_many_as_the_job_says_also_where_it_went_on(
    run: type[UpdatePolicy | UpdateCritic], model: str
) -> None:
    plan, engine = make_plan("data.batchSize=4", "algorithm.name=PPO", "training.maxSkippedSteps=3"), NeverSteps()
    stage_plan = next(stage for stage in plan.stages if stage.run == run.__name__)
    resources = Resources(plan, dict.fromkeys(["actor", "critic", "reference"], engine), {})
    tokens = Column.from_lengths(np.ones(8, np.float32), [2, 2, 2, 2])
    columns = ["response_mask", "advantages", "returns", "old_log_probs", "values"]
    batch = Batch.build(np.arange(4), np.arange(4), dict.fromkeys(columns, tokens))

    def update(stage: UpdatePolicy | UpdateCritic, step: int) -> None:
        stage.run(batch, StageContext(step, 3, plan.spec, str, lambda tensor: tensor, 0, 1))

    before, after = run(stage_plan, resources), run(stage_plan, resources)
    update(before, 1)
    update(before, 2)
    after.load_state(before.state())
    with pytest.raises(BadData, match=f"step 3: 3 optimizer steps of {model} in a row were skipped"):
        update(after, 3)
    assert engine.num_updates == 3
