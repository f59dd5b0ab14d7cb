"""Whose decoder layers are compiled, and who decides it."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.memory.tests.test_workers import gpus
from rljob_api.planning.planner import plan
from rljob_api.planning.tests.configs import DENSE, EXPERTS
from rljob_api.tests.builders import make_job

SMALL = ("data.batchSize=32", "dataBuffer.memory=16Gi")
TRAINED = ["reference", "train/actor"]


def compiled(*overrides, config=DENSE):
    shapes = {} if config is None else {"models/tiny": parse_shape(config)}
    return [engine.name for engine in plan(make_job(*SMALL, *overrides), shapes=shapes).engines if engine.compiles]


def test_on_cuda_what_trains_and_scores_is_compiled_and_on_cpus_nothing():
    assert compiled(gpus(4)) == TRAINED
    assert compiled(gpus(4), config=None) == TRAINED
    assert compiled() == []


@pytest.mark.parametrize("device", [(), (gpus(4),)], ids=["cpu", "cuda"])
def test_a_job_has_what_it_asks_for(device):
    assert compiled(*device, "training.compile=false") == []
    assert compiled(*device, "training.compile=true") == TRAINED


def test_models_with_experts_and_the_layers_of_megatron_are_not_compiled():
    assert compiled(gpus(4), config=DENSE | EXPERTS) == []
    assert compiled(gpus(4), "training.parallelism.expert=2", config=None) == []
    assert compiled(gpus(4), "training.engine=Megatron") == []
