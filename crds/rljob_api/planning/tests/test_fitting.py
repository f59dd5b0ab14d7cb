"""What is changed so that a job fits, in which order, and what is said when nothing helps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.fitting import fit
from rljob_api.planning.planner import plan
from rljob_api.planning.tests.test_memory import gpus
from rljob_api.tests.builders import make_job
from rljob_api.vocabulary.problem import InvalidJobError

SHAPES = {"models/tiny": parse_shape(QWEN3_8B)}


def fitted(*overrides):
    return fit(make_job("data.batchSize=32", "dataBuffer.memory=16Gi", *overrides), SHAPES)


def test_a_job_that_fits_is_left_as_it_is():
    assert fitted(gpus(4)).changes == {}


def test_micro_batches_are_made_smaller_first():
    medium = (gpus(4), "data.maxPromptTokens=4000")
    found = fitted(*medium, "training.tokensPerMicroBatch=32768")
    assert found.changes == {"training.tokensPerMicroBatch": "4096"}  # the largest half of a half that fits
    assert found.overrides == ("training.tokensPerMicroBatch=4096",)
    assert plan(found.job, shapes=SHAPES).memory
    twice = fitted(*medium, "training.tokensPerMicroBatch=8192")
    assert twice.overrides == found.overrides


LONG = ("data.maxPromptTokens=32000", "training.tokensPerMicroBatch=32768")


def test_then_activations_are_computed_again_and_then_sequences_are_shared():
    assert fitted(gpus(4), *LONG).overrides == ("training.memory.activationCheckpointing=Full",)
    found = fitted(gpus(4), *LONG, "data.maxPromptTokens=400000")
    assert set(found.changes) >= {"training.memory.activationCheckpointing", "training.parallelism.context"}
    assert not any("offload" in path for path in found.changes)
    assert plan(found.job, shapes=SHAPES).memory


AUTO = "training.memory.activationCheckpointing=Auto"


def test_a_job_that_leaves_activations_to_the_plan_is_not_told_what_it_decides():
    assert fitted(gpus(4), *LONG, AUTO).changes == {}
    # a row of 64,032 tokens alone: activations computed again, and shared by two workers
    found = fitted(gpus(4), *LONG, "data.maxPromptTokens=400000", AUTO)
    assert "training.memory.activationCheckpointing" not in found.changes and found.changes


def test_an_optimizer_waits_on_the_host_before_parameters_do():
    # on two, half of 12 bytes of each parameter and of 4 more of gradients, and 2 that generate: 76 GiB of 79.6
    # on one, weights and gradients in 4 bytes, 2 that generate and 2 gathered: more than 80 without the optimizer
    found = fitted(gpus(1, count=2), "training.tokensPerMicroBatch=1024")
    assert found.overrides == ("training.memory.offload.optimizer=true",)
    found = fitted(gpus(1, count=1), "training.tokensPerMicroBatch=1024")
    assert found.overrides == (
        "training.memory.offload.optimizer=true",
        "training.memory.offload.parameters=true",
    )
    assert plan(found.job, shapes=SHAPES).memory


LIMITED = "{spec: {containers: [{name: worker, resources: {limits: {memory: 100Gi}}}]}}"


def test_what_nothing_makes_fit_is_refused_with_the_hosts_it_would_take():
    with pytest.raises(InvalidJobError, match="whatever is set in training, a worker of train needs") as caught:
        fitted(f"workerGroups=[{{name: train, template: {LIMITED}}}]")
    (problem,) = caught.value.problems
    assert problem.fix == "It would fit with replicas of groups: train 4."
    with pytest.raises(InvalidJobError) as caught:
        fit(make_job(gpus(1), "dataBuffer.memory=16Gi"), {"models/tiny": replace(SHAPES["models/tiny"], layers=360)})
    (problem,) = caught.value.problems
    assert problem.fix.startswith("No number of hosts helps")  # whoever generates has the whole model


def test_memory_that_nobody_knows_is_refused():
    with pytest.raises(InvalidJobError, match="nobody knows how large this model is, found .models/tiny"):
        fit(make_job(gpus(1)), {})
    with pytest.raises(InvalidJobError, match="nobody knows how much memory a worker of train has"):
        fit(make_job(), SHAPES)


@given(
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 4]),
    st.sampled_from([2048, 65536]),
    st.sampled_from(["None", "Full", "Auto"]),
    st.sampled_from(["Float32", "Int8"]),
)
def test_what_is_proposed_fits_as_it_is(count, replicas, tokens, checkpointing, states):
    overrides = (
        gpus(replicas, count), "data.maxPromptTokens=16000", f"training.tokensPerMicroBatch={tokens}",
        f"training.memory.activationCheckpointing={checkpointing}", f"training.optimizer.states={states}",
    )  # fmt: skip
    found = fitted(*overrides)
    again = fitted(*overrides, *found.overrides)
    assert again.changes == {}
    assert again.job.spec.training == found.job.spec.training
