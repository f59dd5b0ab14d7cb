"""Tests of planning router replay."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning import planner
from rljob_api.planning.tests.configs import DENSE, EXPERTS
from rljob_api.tests.builders import TWO_GROUPS, make_job, make_plan
from rljob_api.vocabulary.problem import InvalidJobError

REPLAY = "training.routerReplay=Rollout"


def test_routes_are_replayed_of_models_that_have_experts():
    plan = make_plan(REPLAY)
    paths = {engine.path for engine in plan.engines}
    planner.plan(make_job(REPLAY), shapes={path: parse_shape(DENSE | EXPERTS) for path in paths})
    dense = {path: parse_shape(DENSE) for path in paths}
    planner.plan(make_job(), shapes=dense)
    with pytest.raises(InvalidJobError, match="routerReplay.*is for models with experts, and models/tiny has none"):
        planner.plan(make_job(REPLAY), shapes=dense)


def test_data_buffers_have_room_for_the_routes_too():
    # 24 layers of 300 experts, of which a token has 4: 24 x 4 x 2 = 192 bytes
    experts = DENSE | EXPERTS | {"num_hidden_layers": 24, "num_experts": 300, "num_experts_per_tok": 4}
    shape = parse_shape(experts)
    assert shape.experts.route_bytes(shape.layers) == 192
    assert parse_shape(DENSE | EXPERTS).experts.route_bytes(2) == 2 * 2
    shapes = {engine.path: shape for engine in make_plan().engines}

    # weights take 64 MiB; 16 rows of 2,000 tokens on each of two hosts 5.9 MiB of routes, and 0.9 MiB of all else
    long = (*TWO_GROUPS, "rollout.maxResponseTokens=2000", "dataBuffer.memory=70Mi")
    planner.plan(make_job(*long), shapes=shapes)
    planner.plan(make_job(REPLAY, *long))  # nothing is known of the model
    with pytest.raises(InvalidJobError, match="6.8 MiB of rows that it gets"):
        planner.plan(make_job(REPLAY, *long), shapes=shapes)


def test_the_policy_reads_the_routes_and_its_reference_does_not():
    columns = {"prompt_routed_experts", "routed_experts"}
    plan = make_plan(REPLAY, "algorithm.correction={method: TruncatedImportance}")
    readers = {stage.name for stage in plan.stages if columns <= set(stage.reads)}
    assert "update" in readers and "reference" not in readers
    old = next(stage.name for stage in plan.stages if stage.writes == ("old_log_probs",))
    assert old in readers
    assert not any(columns & set(stage.reads + stage.writes) for stage in make_plan().stages)
