"""What is changed so that a job fits, in which order, and what is said when nothing helps."""

import pytest

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
    assert found.changes == {"training.tokensPerMicroBatch": 4096}  # the largest half of a half that fits
    assert found.overrides == ("training.tokensPerMicroBatch=4096",)
    assert plan(found.job, shapes=SHAPES).memory
    twice = fitted(*medium, "training.tokensPerMicroBatch=8192")
    assert twice.overrides == found.overrides


LONG = ("data.maxPromptTokens=32000", "training.tokensPerMicroBatch=32768")


def test_then_activations_are_computed_again_and_then_sequences_are_shared():
    assert fitted(gpus(4), *LONG).overrides == ("training.activationCheckpointing=true",)
    found = fitted(gpus(4), *LONG, "data.maxPromptTokens=400000")
    assert set(found.changes) >= {"training.activationCheckpointing", "training.parallelism.context"}
    assert plan(found.job, shapes=SHAPES).memory


def test_what_nothing_makes_fit_is_refused_with_the_hosts_it_would_take():
    with pytest.raises(InvalidJobError, match="whatever is set in training, a worker of train needs") as caught:
        fitted(gpus(1, count=1))
    (problem,) = caught.value.problems
    # on two, half of 12 bytes of each parameter, and of 4 more of gradients, and 2 that generate: 76 GiB of 79.6
    assert problem.fix == "It would fit with replicas of groups: train 4."


def test_memory_that_nobody_knows_is_refused():
    with pytest.raises(InvalidJobError, match="nobody knows how large this model is, found .models/tiny"):
        fit(make_job(gpus(1)), {})
    with pytest.raises(InvalidJobError, match="nobody knows how much memory a worker of train has"):
        fit(make_job(), SHAPES)
