"""Tests of the slices of a checkpoint that ranks keep."""

from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.weight_slices import KeptPart, WeightSlices, padded_words, slice_parameters

FOUR = WeightSlices(tensor=4, heads=8, key_heads=2)
LAYER = "model.layers.3"


def spans(slices: WeightSlices, name: str, shape: tuple[int, ...]) -> list[tuple[int, int, int, object]]:
    return [(part.first, part.last, part.axis, part.spans) for part in slices.parts(name, shape)]


@pytest.mark.parametrize("matrix", ["self_attn.q_proj", "mlp.up_proj", "mlp.experts.17.gate_proj", "mlp.fc1"])
def test_ranks_keep_rows_of_what_reads_the_hidden_state(matrix):
    wanted = [(0, 0, 0, ((0, 4),)), (1, 1, 0, ((4, 8),)), (2, 2, 0, ((8, 12),)), (3, 3, 0, ((12, 16),))]
    assert spans(FOUR, f"{LAYER}.{matrix}.weight", (16, 6)) == wanted
    assert spans(FOUR, f"{LAYER}.{matrix}.bias", (16,)) == wanted


@pytest.mark.parametrize("matrix", ["self_attn.o_proj", "mlp.down_proj", "mlp.experts.17.down_proj", "mlp.fc2"])
def test_ranks_keep_columns_of_what_makes_it_and_all_of_its_bias(matrix):
    parts = FOUR.parts(f"{LAYER}.{matrix}.weight", (6, 16))
    assert [(part.axis, part.spans) for part in parts] == [(1, ((4 * i, 4 * i + 4),)) for i in range(4)]
    assert parts[1].shape((6, 16)) == (6, 4)
    assert spans(FOUR, f"{LAYER}.{matrix}.bias", (6,)) == [(0, 3, 0, None)]


def test_ranks_beyond_the_key_heads_keep_the_same_one():
    """Two key heads of three rows each, four ranks: ranks 0 and 1 have the first."""
    name = f"{LAYER}.self_attn.k_proj.weight"
    assert spans(FOUR, name, (6, 5)) == [(0, 1, 0, ((0, 3),)), (2, 3, 0, ((3, 6),))]
    assert FOUR.part(name, (6, 5), 1) is not FOUR.part(name, (6, 5), 2)
    assert FOUR.part(name, (6, 5), 2) == KeptPart(2, 3, 0, ((3, 6),))


def test_of_a_matrix_of_queries_keys_and_values_ranks_keep_rows_of_each():
    """8 heads of queries and 2 of keys and of values, of two rows each: 16 + 4 + 4."""
    parts = FOUR.parts(f"{LAYER}.self_attn.qkv_proj.weight", (24, 5))
    assert [part.spans for part in parts] == [
        ((0, 4), (16, 18), (20, 22)),
        ((4, 8), (16, 18), (20, 22)),
        ((8, 12), (18, 20), (22, 24)),
        ((12, 16), (18, 20), (22, 24)),
    ]
    assert parts[0].shape((24, 5)) == (8, 5)
    (first, *_) = FOUR.parts(f"{LAYER}.mlp.gate_up_proj.weight", (16, 5))
    assert first.spans == ((0, 2), (8, 10))


def test_words_are_counted_up_before_they_are_divided():
    """130 words are 192: 48 for each of four ranks, of which the third has 34 left and the last none."""
    parts = FOUR.parts("model.embed_tokens.weight", (130, 5))
    assert [part.spans for part in parts] == [((0, 48),), ((48, 96),), ((96, 130),), ((130, 130),)]
    assert (padded_words(130), padded_words(128), parts[3].shape((130, 5))) == (192, 128, (0, 5))
    assert [part.spans for part in FOUR.parts("lm_head.weight", (130, 5))] == [part.spans for part in parts]


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        f"{LAYER}.self_attn.q_norm.weight",
        f"{LAYER}.input_layernorm.weight",
        f"{LAYER}.mlp.gate.weight",
        "model.visual.layers.0.self_attn.q_proj.weight",
        "h.0.attn.c_attn.weight",
    ],
)
def test_every_rank_keeps_all_of_norms_routers_and_towers(name):
    assert spans(FOUR, name, (16, 16)) == [(0, 3, 0, None)]


def test_one_rank_and_a_family_that_is_not_known_keep_everything():
    name = f"{LAYER}.mlp.up_proj.weight"
    assert spans(WeightSlices.of(parse_shape(QWEN3), 1), name, (16, 6)) == [(0, 0, 0, None)]
    assert spans(WeightSlices.of(None, 2), name, (16, 6)) == [(0, 1, 0, None)]
    assert WeightSlices.of(parse_shape(QWEN3), 2) == WeightSlices(2, heads=8, key_heads=4)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (
            f"{LAYER}.mlp.up_proj.weight",
            (18, 6),
            f"18 rows of {LAYER}.mlp.up_proj.weight cannot be shared",
        ),
        (f"{LAYER}.mlp.down_proj.weight", (6, 18), "18 columns of"),
    ],
)
def test_what_does_not_divide_is_refused_by_its_name(name, shape, said):
    with pytest.raises(ValueError, match=said):
        FOUR.parts(name, shape)


def test_words_and_key_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="128 words cannot be shared equally by 3 ranks"):
        replace(FOUR, tensor=3).parts("lm_head.weight", (128, 6))
    with pytest.raises(ValueError, match="k_proj"):
        replace(FOUR, tensor=3, key_heads=2).parts(f"{LAYER}.self_attn.k_proj.weight", (6, 6))


QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}


def test_parameters_of_a_slice_are_those_of_its_tensors():
    """On 8 ranks, per layer: queries and output 32 x 16 each and three matrices of 16 x 40, divided by 8; keys and
    values of one of four heads, 4 x 16 each; norms 2 x 16 + 2 x 4. Of 128 words 16, twice, and the last norm."""
    layer = (2 * 512 + 3 * 640) // 8 + 2 * 64 + 32 + 8
    assert slice_parameters(parse_shape(QWEN3), 8) == 2 * layer + 2 * 16 * 16 + 16
    assert slice_parameters(parse_shape(QWEN3), 1) == parse_shape(QWEN3).parameters


def test_a_slice_of_experts_divides_each_of_them_and_not_the_router():
    """4 experts of width 24 in the place of the MLP: 3 x 16 x 24 each, and a router of 4 x 16."""
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    dense, shape = parse_shape(QWEN3), parse_shape(QWEN3 | experts)
    difference = 2 * (4 * 3 * 16 * 24 // 4 + 64 - 3 * 640 // 4)
    assert slice_parameters(shape, 4) - slice_parameters(dense, 4) == difference
