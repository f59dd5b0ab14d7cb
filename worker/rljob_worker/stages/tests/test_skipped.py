"""How many optimizer steps in a row may be skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, total
from rljob_worker.stages.skipped import SkippedSteps, skipped_state, watched, with_skipped_state


def updates(skipped: str) -> Iterator[Scalars]:
    """One per character, x for a skipped one; a rank of two says half."""
    return ({"update/skipped_total": total(0.5 * (each == "x"))} for each in skipped)


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
