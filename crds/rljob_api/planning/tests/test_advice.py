"""What a plan warns of: settings that are allowed and hardly ever meant."""

import pytest

from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import make_plan


@pytest.mark.parametrize(
    ("rate", "num_warnings"), [(0.9e-8, 1), (1e-8, 0), (1e-6, 0), (1e-2, 0), (1.1e-2, 1), (10.0, 1)]
)
def test_a_learning_rate_that_nobody_trains_with_is_warned_of(rate, num_warnings):
    warnings = [item for item in warnings_of(make_plan(f"training.learningRate={rate:.12f}")) if "learningRate" in item]
    assert len(warnings) == num_warnings


@pytest.mark.parametrize(("warmup", "num_warnings"), [(9, 0), (10, 1), (1000, 1)])
def test_a_warmup_that_outlasts_the_job_is_warned_of(warmup, num_warnings):
    plan = make_plan(f"training.warmupSteps={warmup}", "stop.steps=10")
    assert len([item for item in warnings_of(plan) if "warmupSteps" in item]) == num_warnings
