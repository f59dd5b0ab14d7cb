from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.positions import position_problems
from rljob_api.tests.builders import make_plan

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}
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


@pytest.mark.parametrize(
    ("overrides", "is_refused"),
    [
        (("rollout.maxResponseTokens=511",), False),
        (("rollout.maxResponseTokens=512",), True),
        (("rollout.maxResponseTokens=4096", "rollout.maxSequenceTokens=512", "data.maxPromptTokens=100"), False),
        (("rollout.maxResponseTokens=4096", "rollout.maxSequenceTokens=513", "data.maxPromptTokens=100"), True),
    ],
)
def test_a_response_that_never_fits_is_refused(overrides, is_refused):
    assert bool(problems(*overrides)) is is_refused


def test_what_would_fit_is_named():
    (found,) = problems("rollout.maxResponseTokens=600", "data.maxPromptTokens=100")
    assert "reads 512 positions" in found.message
    assert found.fix == "Write 412 or less, or set rollout.maxSequenceTokens: 512."
    (found,) = problems("rollout.maxResponseTokens=600", "data.maxPromptTokens=512")
    assert found.fix == "Write less, and lower data.maxPromptTokens, or set rollout.maxSequenceTokens: 512."


def test_models_of_which_nothing_is_known_are_left_to_their_engines():
    assert problems("rollout.maxResponseTokens=600", shape=replace(SHAPE, max_positions=None)) == []
    plan = make_plan("rollout.maxResponseTokens=600")
    assert list(position_problems(plan, {})) == []
