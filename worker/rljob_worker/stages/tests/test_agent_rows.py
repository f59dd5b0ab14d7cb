"""Which rows of a team's trajectories a stage works with."""

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.stages.scoring import by_model

SPEC = make_plan(
    "models=[{name: left, path: models/tiny}, {name: right, path: models/tiny}]",
    "rollout.conversation={agents: [{name: solver, policy: left}, {name: checker, policy: right}], rounds: 1}",
).spec


def score_of(number, rows):
    """Every token of the rows has this score."""
    return Column.ragged([np.full(length, number) for length in rows["response_ids"].lengths], "float64")


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        # rows 0 and 2 are the solver's, 1 and 3 the checker's
        (("left", "right"), [[1.0], [2.0, 2.0], [1.0, 1.0, 1.0], [2.0]]),
        (("right",), [[0.0], [2.0, 2.0], [0.0, 0.0, 0.0], [2.0]]),
        (("left",), [[1.0], [0.0, 0.0], [1.0, 1.0, 1.0], [0.0]]),
    ],
)
def test_a_stage_scores_the_rows_of_the_agents_of_its_models(models, expected):
    rows = np.arange(4)
    responses = Column.ragged([np.zeros(length, np.int64) for length in (1, 2, 3, 1)])
    batch = Batch.build(rows, rows // 2, {"response_ids": responses})
    engines = {model: number for number, model in enumerate(("left", "right"), start=1) if model in models}
    column = by_model(SPEC, engines, score_of, batch)
    assert [row.tolist() for row in column.to_list()] == expected and column.dtype == "float64"
