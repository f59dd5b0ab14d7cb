"""Tests of the API types: defaults and the full example of the design."""

import json

import pytest
from pydantic import ValidationError

from rljob_api import v1alpha1
from rljob_api.loading.document import read_document
from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import FULL_EXAMPLE, make_job, make_plan
from rljob_api.v1alpha1 import AlgorithmSpec, RLJob
from rljob_api.vocabulary.model import ApiModel, field_descriptions

SPECS = [var for var in vars(v1alpha1).values() if isinstance(var, type) and issubclass(var, ApiModel)]


def read(text):
    return RLJob.model_validate(read_document(text).value, by_alias=True, by_name=False)


def test_the_full_example_of_the_design_parses():
    spec = read(FULL_EXAMPLE).spec
    assert spec.rollout.engine == "VLLM"
    assert spec.training.learning_rate == 1e-6
    # 128 prompts x 8 responses in mini-batches of 256 rows
    assert (spec.num_rows, spec.num_mini_batches, spec.num_optimizer_steps) == (1024, 4, 4)
    assert spec.dag.stages[6].rename == {"rewards": "total_rewards"}


@pytest.mark.parametrize(
    ("name", "group_size", "whiten", "has_critic"), [("GRPO", 8, False, False), ("PPO", 1, True, True)]
)
def test_defaults_that_depend_on_the_algorithm(name, group_size, whiten, has_critic):
    algorithm = AlgorithmSpec(name=name)
    assert (algorithm.group_size, algorithm.advantage.whiten) == (group_size, whiten)
    assert (algorithm.critic is not None) == has_critic


def test_a_given_value_wins_over_the_algorithms_default():
    spec = make_job("algorithm={name: PPO, groupSize: 2, advantage: {whiten: false, lambda: 0.95}}").spec
    assert (spec.algorithm.group_size, spec.algorithm.advantage.whiten) == (2, False)
    assert spec.algorithm.advantage.lambda_ == 0.95


def test_defaults_that_depend_on_the_algorithm_are_not_in_the_schema():
    schema = AlgorithmSpec.model_json_schema()
    assert "default" not in schema["properties"]["groupSize"]
    assert "default" not in schema["$defs"]["AdvantageSpec"]["properties"]["whiten"]


@pytest.mark.parametrize("model", SPECS, ids=lambda model: model.__name__)
def test_every_field_is_described(model):
    assert set(field_descriptions(model)) == set(model.model_fields)
    properties = model.model_json_schema()["properties"]
    assert all(item.get("description") for item in properties.values())


def test_no_union_of_models_so_that_a_structural_schema_exists():
    def unions(node):
        if isinstance(node, dict):
            if "anyOf" in node:
                yield node["anyOf"]
            for value in node.values():
                yield from unions(value)
        elif isinstance(node, list):
            for value in node:
                yield from unions(value)

    for union in unions(RLJob.model_json_schema()):
        assert len([item for item in union if item != {"type": "null"}]) == 1


def test_values_are_frozen_and_survive_json():
    job = make_job()
    with pytest.raises(ValidationError):
        job.spec.seed = 1
    assert RLJob.model_validate(job.to_json()) == job
    assert RLJob.model_validate_json(json.dumps(job.to_json())) == job


def test_python_spelling_is_for_python_only():
    data = read_document(FULL_EXAMPLE.replace("batchSize", "batch_size")).value
    with pytest.raises(ValidationError):
        RLJob.model_validate(data, by_alias=True, by_name=False)


def test_reference_and_critic_derive_from_actor():
    spec = make_job().spec
    assert spec.source_of("reference") is spec.source_of("critic") is spec.source_of("actor")
    with pytest.raises(KeyError):
        spec.source_of("judge")


def test_a_plan_survives_json_and_equal_plans_have_equal_hashes():
    plan = make_plan()
    again = Plan.model_validate_json(plan.canonical_json())
    assert again == plan
    assert again.hash() == plan.hash()
    assert make_plan("seed=1").hash() != plan.hash()


def test_a_row_is_as_long_as_prompt_and_response_unless_the_sequence_is_bounded():
    lengths = ("data.maxPromptTokens=100", "rollout.maxResponseTokens=50")
    assert make_job(*lengths).spec.longest_row == 150
    assert make_job(*lengths, "rollout.maxSequenceTokens=120").spec.longest_row == 120
    assert make_job(*lengths, "rollout.maxSequenceTokens=200").spec.longest_row == 150
