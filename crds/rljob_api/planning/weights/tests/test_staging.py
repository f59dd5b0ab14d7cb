"""Where the next version waits while one decodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.loading.load import parse_job
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.planning.weights.arrival import weight_arrivals
from rljob_api.planning.weights.staging import stages_on_device
from rljob_api.planning.weights.tests.test_arrival import JOB
from rljob_api.planning.weights.tests.test_version_sizes import LARGE, shape_of
from rljob_api.vocabulary.problem import InvalidJobError
from rljob_api.vocabulary.quantity import parse_quantity

SHAPE = shape_of(QWEN3_8B)
WHOLE = 2 * SHAPE.parameters
ALONE = "rollout.parallelism.tensor=1"
AHEAD = "rollout.maxStaleness=1"
CPU = ("workerGroups=[{name: rollout, accelerator: {count: 8}}, {name: train}]", "data.batchSize=8")
FULL = "rollout.memoryFraction=0.95"


def planned(*overrides: str, shape=SHAPE) -> Plan:
    memory = "dataBuffer.memory=64Ti"
    return plan(parse_job(JOB, (memory, AHEAD, *overrides)), shapes={"models/large": shape})


def staged(made: Plan) -> dict[str, int]:
    """By phase, of a worker that generates."""
    (memory,) = [item for item in made.memory if item.group == "rollout"]
    return {phase.phase: phase.staged for phase in memory.phases}


def peak(made: Plan) -> int:
    (memory,) = [item for item in made.memory if item.group == "rollout"]
    return max(phase.peak for phase in memory.phases)


def test_a_device_with_room_for_one_more_slice_takes_it_while_it_generates():
    """8.19e9 parameters of 2 bytes beside as many, of 80 GiB; read and written at 2.5e12 bytes a second in 13 ms, and
    36 layers of 11 tensors in 8."""
    made, on_host = planned(ALONE), planned(ALONE, "weightSync.staging=Host")
    assert staged(made) == {"load": 0, "generate": WHOLE, "sync": WHOLE}
    assert stages_on_device(made, "rollout") and not stages_on_device(made, "train")
    # the engine has its weights and 0.6 of what they leave of 80 GiB
    reserved = WHOLE + int((parse_quantity("81559Mi") - WHOLE) * 0.6)
    assert peak(on_host) < peak(made) == reserved + WHOLE and not stages_on_device(on_host, "rollout")
    (arrival,) = weight_arrivals(made, {"models/large": SHAPE}, DEFAULT)
    assert (arrival.staged, arrival.pause_seconds) == ("Device", pytest.approx(2 * WHOLE / 2.5e12 + 36 * 11 * 2e-5))


@pytest.mark.parametrize("overrides", [(ALONE, FULL), (ALONE, "rollout.maxStaleness=0"), CPU, (*CPU, ALONE)])
def test_without_room_without_versions_ahead_and_on_cpus_it_waits_on_the_host(overrides):
    made = planned(*overrides)
    assert not any(staged(made).values()) and not stages_on_device(made, "rollout")


def test_of_235_billion_parameters_59_gigabytes_have_no_room_beside_59_on_80():
    trainers = "workerGroups.1={name: train, replicas: 32, accelerator: {profile: nvidia-h100, count: 8}}"
    made = planned(trainers, shape=shape_of(LARGE))
    assert not any(staged(made).values())
    (arrival,) = weight_arrivals(made, {"models/large": shape_of(LARGE)}, DEFAULT)
    assert arrival.staged == "Host"


def test_a_job_that_asks_for_it_without_room_is_refused():
    with pytest.raises(InvalidJobError) as refused:
        planned(ALONE, FULL, "weightSync.staging=Device")
    (problem,) = refused.value.problems
    assert "staged 15.3 GiB" in problem.message
    assert "weightSync.staging: Host, or lower rollout.memoryFraction" in problem.fix


def test_cpus_do_it_where_they_are_asked_to():
    made = planned(*CPU, "weightSync.staging=Device")
    assert staged(made)["generate"] > 0 and stages_on_device(made, "rollout")
    assert stages_on_device(plan(parse_job(JOB, (AHEAD, *CPU, "weightSync.staging=Device"))), "rollout")


def test_pods_of_an_elastic_group_stage_nothing():
    elastic = "workerGroups.0={name: rollout, elastic: {min: 1, max: 8}, accelerator: {profile: nvidia-h100, count: 8}}"
    made = planned(elastic, ALONE, "rollout.leaseRows=8", "rollout.parallelism.tensor=1")
    assert not any(staged(made).values())


@pytest.mark.parametrize(("fraction", "is_staged"), [(0.65, True), (0.7, False)])
def test_an_engine_that_reserves_memory_leaves_no_more_than_the_rest(fraction: float, is_staged: bool):
    """15.3 GiB and 0.65 of the 64.4 that they leave and 15.3 are 72.4, with 0.7 of them 75.6, of which 74.4 may be
    used; rows need little of it."""
    small = (ALONE, "rollout.maxResponseTokens=64", "data.maxPromptTokens=64", f"rollout.memoryFraction={fraction}")
    made = planned(*small, "rollout.engine=VLLM")
    assert stages_on_device(made, "rollout") is is_staged
    assert stages_on_device(planned(*small, "rollout.engine=Transformers"), "rollout")


SCORES = """dag={stages: [
  {name: rollout, run: Rollout, models: [actor], group: rollout},
  {name: reward, run: Reward, after: [rollout], group: rollout},
  {name: reference, run: LogProbs, models: [reference], after: [rollout], group: rollout},
  {name: advantage, run: Advantage, after: [reward, reference], group: train},
  {name: update, run: UpdatePolicy, models: [actor], after: [advantage], group: train}]}"""
TWO = "models=[{name: actor, path: models/large}, {name: reference, path: models/large}]"


def test_an_engine_reserves_a_part_of_what_models_that_are_scored_leave():
    """20.3 GiB of a reference and 20.3 of a copy, 0.5 of the 39 that they leave, and 20.3 of slices are 80.5, of which
    74.4 are used; without the reference they were 70.3."""
    groups = "workerGroups=[{name: rollout, accelerator: %s}, {name: train, accelerator: %s}]"
    accelerators = groups % ("{profile: nvidia-h100, count: 1}", "{profile: nvidia-h100, count: 8}")
    little = ("rollout.maxResponseTokens=64", "data.maxPromptTokens=64", "data.batchSize=8", accelerators)
    made = planned(ALONE, *little, "rollout.memoryFraction=0.5", TWO, SCORES, shape=replace(SHAPE, layers=50))
    assert not any(staged(made).values())


def test_a_model_that_does_not_fit_itself_is_not_told_to_wait_on_the_host():
    with pytest.raises(InvalidJobError) as refused:
        planned(ALONE, "weightSync.staging=Device", shape=replace(SHAPE, layers=190))
    (problem,) = refused.value.problems
    assert "weightSync.staging" not in problem.fix and "more replicas or accelerators" in problem.fix
