"""Predicted seconds of training, by hand."""

import pytest

from rljob_api.catalogue.profiles import AcceleratorSpeed
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.costs.training_time import training_seconds
from rljob_api.planning.memory.tests.test_workers import LITTLE, gpus
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import make_job

SHAPES = {"models/tiny": parse_shape(QWEN3_8B)}
NUMBERS = 8_190_735_360
SPEED = AcceleratorSpeed(operations=1e15, link=1e11, network=1e10, host=2e10, host_memory=1e10)


def planned(*overrides):
    job = make_job(gpus(1), "data.batchSize=8", "algorithm.kl.coefficient=0", LITTLE, *overrides)
    return plan(job, shapes=SHAPES)


def seconds(result, **speed):
    return training_seconds(result, SHAPES, {"train": SPEED.model_copy(update=speed)})


def test_what_is_computed_takes_its_operations():
    (mesh,) = planned().meshes
    assert seconds(planned(), link=1e30) == pytest.approx(mesh.operations / 1e15)


def test_weights_are_gathered_while_layers_are_computed():
    (mesh,) = planned().meshes
    (axis,) = mesh.axes
    computed = mesh.operations / 1e15
    assert axis.axis == "dp" and seconds(planned(), link=axis.sent / (0.9 * computed)) == pytest.approx(computed)
    assert seconds(planned(), link=axis.sent / (3 * computed)) == pytest.approx(3 * computed)


def test_tokens_of_ranks_that_split_matrices_are_waited_for():
    result = planned("training.parallelism.tensor=8")
    (mesh,) = result.meshes
    (axis,) = mesh.axes
    assert axis.axis == "tp"
    assert seconds(result) == pytest.approx(mesh.operations / 1e15 + axis.sent / 1e11)


def test_what_waits_on_the_host_travels():
    here, optimizer = planned(), planned("training.memory.offload.optimizer=true")
    # 8 bytes of an eighth of the numbers, to the accelerator and back, once in a step
    assert seconds(optimizer) - seconds(here) == pytest.approx(2 * NUMBERS / 2e10)
    parameters = planned("training.memory.offload.parameters=true")
    # 32 rows of 48 tokens on 8 workers are one micro-batch: 4 bytes of an eighth of the numbers in its forward and its
    # backward pass, as much of gradients, and 28 bytes of each that is stepped
    assert seconds(parameters) - seconds(here) == pytest.approx(3 * NUMBERS / 2 / 2e10 + 28 * NUMBERS / 8 / 1e10)
