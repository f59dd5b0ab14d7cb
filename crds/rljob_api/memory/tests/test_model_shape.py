import pytest

from rljob_api.memory.model_shape import parse_shape

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def test_the_shape_of_a_model_that_people_know():
    shape = parse_shape(QWEN3_8B)
    # 36 layers of 192,946,432 and twice an embedding of 622,329,856, and the last norm: what its card calls 8.2 B
    assert (shape.layer, shape.embedding, shape.parameters) == (192_946_432, 622_329_856, 8_190_735_360)


@pytest.mark.parametrize("change", [{"model_type": "mamba"}, {"hidden_size": None}, {"num_attention_heads": 0}])
def test_what_is_not_understood_has_no_shape(change):
    config = {key: value for key, value in (QWEN3_8B | change).items() if key != "head_dim"}
    assert parse_shape(config) is None
