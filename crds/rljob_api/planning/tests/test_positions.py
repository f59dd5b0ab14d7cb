"""Tests of the longest row that a model can read."""

from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.model_problems import position_problems
from rljob_api.planning.tests.configs import DENSE
from rljob_api.tests.builders import make_plan

CONFIG = DENSE | {"num_attention_heads": 2, "max_position_embeddings": 512}
SHAPE = parse_shape(CONFIG)


def problems(*overrides, shape=SHAPE):
    plan = make_plan(*overrides)
    return list(position_problems(plan, {engine.path: shape for engine in plan.engines}))


def test_a_config_says_how_much_its_model_reads():
    assert SHAPE is not None and SHAPE.max_positions == 512
    gpt2 = {"model_type": "gpt2", "vocab_size": 128, "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 256}
    assert parse_shape(gpt2).max_positions == 256
    assert (
        parse_shape({key: value for key, value in CONFIG.items() if key != "max_position_embeddings"}).max_positions
        is None
    )


LONG = "rollout.maxResponseTokens=4096"


@pytest.mark.parametrize(
    ("overrides", "is_refused"),
    [
        (("rollout.maxResponseTokens=496",), False),  # and a prompt of 16
        (("rollout.maxResponseTokens=497",), True),
        (("data.maxPromptTokens=480",), False),  # and a response of 32
        (("data.maxPromptTokens=481",), True),
        ((LONG, "rollout.maxSequenceTokens=512", "data.maxPromptTokens=100"), False),
        ((LONG, "rollout.maxSequenceTokens=513", "data.maxPromptTokens=100"), True),
    ],
)
def test_rows_that_may_be_longer_than_a_model_reads_are_refused(overrides, is_refused):
    assert bool(problems(*overrides)) is is_refused


SHORTER = "or set rollout.maxSequenceTokens: 512, which shortens responses to long prompts."


@pytest.mark.parametrize(
    ("prompt", "response", "field", "fix"),
    [
        (100, 500, "data.maxPromptTokens", f"Write 12 or less, {SHORTER}"),
        (1024, 32, "data.maxPromptTokens", "Write 480 or less."),
        (100, 600, "rollout.maxResponseTokens", f"Write 412 or less, {SHORTER}"),
        (100, 511, "data.maxPromptTokens", f"Write 1 or less, {SHORTER}"),
        (511, 600, "rollout.maxResponseTokens", f"Write 1 or less, {SHORTER}"),
        (512, 600, "rollout.maxResponseTokens", "Write less, and lower data.maxPromptTokens."),
    ],
)
def test_the_field_that_gives_way_is_named_with_what_would_fit(prompt, response, field, fix):
    (result,) = problems(f"rollout.maxResponseTokens={response}", f"data.maxPromptTokens={prompt}")
    assert result.path == f"spec.{field}" and result.fix == fix
    assert f"rows of up to {prompt + response}, and model models/tiny reads 512 positions" in result.message


def test_a_reference_reads_the_same_rows():
    plan = make_plan("models=[{name: actor, path: a}, {name: reference, path: b}]", "data.maxPromptTokens=481")
    (result,) = position_problems(plan, {"a": replace(SHAPE, max_positions=4096), "b": SHAPE})
    assert "model b reads 512" in result.message


def test_texts_that_may_be_longer_than_a_model_of_rewards_reads_are_refused():
    models = "models=[{name: actor, path: a}, {name: taste, path: t}]"
    first = "{name: first, run: 'rljob_worker.rewards:exact_match', column: answer}"

    def problems(longest):
        taste = f"{{name: good, run: RewardModel, model: taste, options: {{maxTokens: {longest}}}}}"
        return list(position_problems(make_plan(models, f"rewards=[{first}, {taste}]"), {"t": SHAPE}))

    assert problems(512) == []
    (problem,) = problems(513)
    assert (problem.path, problem.found) == ("spec.rewards[1].options.maxTokens", "513")
    assert problem.message.startswith("model t reads 512 positions") and problem.fix == "Write 512 or less."


def test_models_of_which_nothing_is_known_are_left_to_their_engines():
    assert problems("rollout.maxResponseTokens=600", shape=replace(SHAPE, max_positions=None)) == []
    plan = make_plan("rollout.maxResponseTokens=600")
    assert list(position_problems(plan, {})) == []
