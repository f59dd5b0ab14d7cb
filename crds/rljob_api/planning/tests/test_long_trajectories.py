"""A trajectory that has to be in one micro-batch, and does not fit there."""

import pytest
from pydantic import ValidationError

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan

# rows of up to 100 + 200 tokens, and of three rows 900
LENGTHS = ("data.maxPromptTokens=100", "rollout.maxResponseTokens=200")


def with_rows(number, *overrides):
    plan = make_plan(*LENGTHS, *overrides)
    return Plan.model_validate({**plan.to_json(), "rowsPerTrajectory": number})


def test_a_trajectory_longer_than_a_micro_batch_is_refused_where_its_ratio_is_one():
    gspo = "algorithm.loss.name=GSPO"
    with pytest.raises(
        ValidationError,
        match="a trajectory of up to 3 rows of up to 300 tokens has 900, and the loss "
        "GSPO needs all of it in one micro-batch of 899 tokens",
    ):
        with_rows(3, gspo, "training.tokensPerMicroBatch=899")
    assert with_rows(3, gspo, "training.tokensPerMicroBatch=900").rows_per_trajectory == 3
    assert with_rows(1, gspo, "training.tokensPerMicroBatch=300").rows_per_trajectory == 1


def test_a_loss_of_tokens_takes_trajectories_of_any_length():
    assert with_rows(3, "training.tokensPerMicroBatch=300").rows_per_trajectory == 3
