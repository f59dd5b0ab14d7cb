"""Tests of number formats that depend on the device."""

import pytest

from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import TWO_GROUPS, dag, make_plan

GPU = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}]"
GENERATES_ON_CPU = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}, {name: rollout}]"
REWARDS_ON_CPU = (
    "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}, {name: judges}]",
    dag(
        "name: rollout, run: Rollout, group: train",
        "name: reward, run: Reward, after: [rollout], group: judges",
        "name: advantage, run: Advantage, after: [reward], group: train",
        "name: update, run: UpdatePolicy, after: [advantage], group: train",
    ),
    "algorithm.kl.coefficient=0",
)


@pytest.mark.parametrize(
    "overrides, precision",
    [
        ((), "Float32"),
        (TWO_GROUPS, "Float32"),
        ((GPU,), "BFloat16"),
        ((GENERATES_ON_CPU,), "Float32"),
        (REWARDS_ON_CPU, "BFloat16"),
        (("training.precision=BFloat16",), "BFloat16"),
        ((GPU, "training.precision=Float32"), "Float32"),
    ],
)
def test_models_on_cpus_are_computed_in_float32_unless_the_job_says_otherwise(overrides, precision):
    assert make_plan(*overrides).precision == precision


@pytest.mark.parametrize(
    "overrides, warns",
    [(("training.precision=BFloat16",), True), ((), False), ((GPU, "training.precision=BFloat16"), False)],
)
def test_bfloat16_on_a_cpu_is_a_warning_that_says_why(overrides, warns):
    said = [sentence for sentence in warnings_of(make_plan(*overrides)) if "BFloat16" in sentence]
    assert len(said) == warns
    assert not warns or ("train computes on CPUs" in said[0] and "instructions" in said[0])
