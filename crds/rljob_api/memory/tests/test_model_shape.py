"""Tests of model shapes: parameters, experts, splits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.memory.activations import activations
from rljob_api.memory.model_shape import parse_shape, pipeline_layers
from rljob_api.memory.parallel_layout import ParallelLayout

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


@pytest.mark.parametrize(
    "wrong",
    [{"vocab_size": 0}, {"vocab_size": -5}, {"num_attention_heads": 0}, {"num_hidden_layers": 0}, {"hidden_size": 0}],
)
def test_sizes_that_no_model_has_are_no_shape(wrong):
    assert parse_shape(QWEN3_8B | wrong) is None


def test_the_shape_of_a_model_that_people_know():
    shape = parse_shape(QWEN3_8B)
    # 36 layers of 192,946,432 and twice an embedding of 622,329,856, and the last norm: what its card calls 8.2 B
    assert (shape.layer, shape.embedding, shape.parameters) == (192_946_432, 622_329_856, 8_190_735_360)


QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def test_experts_are_counted_all_in_memory_and_those_chosen_in_activations():
    shape = parse_shape(QWEN3_30B_A3B)
    # of a layer 128 x 3 x 2048 x 768 in experts, 128 x 2048 in the router and 18,878,720 beside them
    assert (shape.layer, shape.parameters) == (603_979_776 + 262_144 + 18_878_720, 30_532_122_624)
    # two of 48 layers have an MLP of 3 x 2048 x 12288 in the place of 604,241,920
    dense = parse_shape(QWEN3_30B_A3B | {"mlp_only_layers": [0, 5]})
    assert shape.parameters - dense.parameters == 2 * (604_241_920 - 75_497_472)
    # a token is computed by 8 experts: norms 4 x 2048, 4096 + 512 of heads, attention 3 x 4096 + 2 x 512,
    # experts 8 x (2 x 2048 + 4 x 768) + 3 x 128
    layer = 8192 + (4096 + 512) + 13312 + 8 * 7168 + 384
    outside = 4 * 2048 + 2 * 128
    layout = ParallelLayout(shape, ranks=1, stored=4, computed=4, on_cpu=True)
    assert activations(layout, 1, recompute=False) == (48 * layer + outside) * 4
    # and where ranks share experts, once more what 8 of them made, as it came back
    shared = replace(layout, ranks=8, expert_ranks=8)
    assert activations(shared, 1, recompute=False) == (48 * (layer + 8 * 2048) + outside) * 4


def test_experts_that_ranks_share_are_never_all_on_one():
    shape = parse_shape(QWEN3_30B_A3B)
    spread = ParallelLayout(shape, ranks=16, stored=4, computed=2, on_cpu=False, expert_ranks=8)
    # 48 layers of 603,979,776 in experts, of which 7 / 8 are elsewhere
    assert spread.parameters_here == 30_532_122_624 - 48 * 603_979_776 * 7 // 8
    assert spread.unit == 18_878_720 + 262_144 + 603_979_776 // 8
    assert spread.shard == 30_532_122_624 // 16 * 4, "what is kept is divided as before"
    # two ranks split each matrix, and have experts apart: what is not an expert is kept on 8, experts on 16
    both = replace(spread, ranks=8, tensor=2)
    assert both.shard == ((30_532_122_624 - 48 * 603_979_776) // 8 + 48 * 603_979_776 // 16) * 4


@pytest.mark.parametrize(
    ("change", "largest"),
    [
        ({}, 151_936 * 4096),
        ({"vocab_size": 100}, 4096 * 12_288),
        ({"vocab_size": 100, "model_type": "phi3"}, 2 * 4096 * 12_288),  # gate and up are one tensor
        ({"vocab_size": 100, "intermediate_size": 100}, 4096 * 4096),
        # queries, keys and values are one tensor
        ({"vocab_size": 100, "intermediate_size": 100, "model_type": "phi3"}, 4096 * (4096 + 2 * 1024)),
        (QWEN3_30B_A3B, 128 * 2 * 2048 * 768),
    ],
)
def test_the_largest_tensor_is_what_goes_alone(change, largest):
    assert parse_shape(QWEN3_8B | change).largest_tensor == largest


@pytest.mark.parametrize(
    ("change", "bounded"),
    [
        ({}, False),
        ({"model_type": "gemma2"}, True),  # as its config is where it does not say
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, False),
        ({"model_type": "gemma3_text"}, False),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 30.0}, True),
    ],
)
def test_scores_are_bounded_where_the_config_or_its_family_says(change, bounded):
    assert parse_shape(QWEN3_8B | change).bounded == bounded


@pytest.mark.parametrize("change", [{"model_type": "mamba"}, {"hidden_size": None}, {"num_attention_heads": 0}])
def test_what_is_not_understood_has_no_shape(change):
    config = {key: value for key, value in (QWEN3_8B | change).items() if key != "head_dim"}
    assert parse_shape(config) is None


@given(st.integers(1, 9), st.integers(0, 40))
def test_stages_have_all_layers_in_order_and_nearly_as_many(num_stages, more):
    num_layers = num_stages + more
    stages = [pipeline_layers(stage, num_stages, num_layers) for stage in range(num_stages)]
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
    assert len(stages[-1]) == num_layers // num_stages > 0
    assert {len(stage) - len(stages[-1]) for stage in stages} <= {0, 1}


@pytest.mark.parametrize("num_stages", [1, 2, 5, 36])
def test_stages_have_together_what_the_model_has(num_stages):
    shape = parse_shape(QWEN3_8B)
    stages = [shape.stage(stage, num_stages) for stage in range(num_stages)]
    assert sum(stage.parameters for stage in stages) == shape.parameters
    assert sum(stage.operations(100, predicts=True) for stage in stages) == shape.operations(100, predicts=True)
    has_words = [stage.largest_tensor == shape.embedding for stage in stages]
    assert has_words == [stage in (0, num_stages - 1) for stage in range(num_stages)]


def test_an_embedding_that_is_the_last_layer_is_on_the_first_stage_and_on_the_last():
    shape = parse_shape(QWEN3_8B | {"tie_word_embeddings": True})
    first, between, last = (shape.stage(stage, 3) for stage in range(3))
    assert first.parameters + between.parameters + last.parameters == shape.parameters + shape.embedding
    assert last.parameters == first.parameters + shape.hidden  # and the norm behind the layers
    critic = replace(shape, has_words=False)
    assert critic.parameters == shape.parameters
    assert critic.stage(2, 3).parameters == last.parameters - shape.embedding
    assert critic.stage(2, 3).largest_tensor < last.largest_tensor == shape.embedding


def test_a_stage_has_the_experts_of_its_layers():
    # the second and the third of five layers have an MLP
    shape = parse_shape(QWEN3_30B_A3B | {"num_hidden_layers": 5, "mlp_only_layers": [1, 2]})
    stages = [shape.stage(stage, 3) for stage in range(3)]
    assert [stage.experts.dense for stage in stages] == [(1,), (0,), ()]
    assert [stage.all_experts // shape.layer_experts for stage in stages] == [1, 1, 1]
    assert sum(stage.parameters for stage in stages) == shape.parameters


def test_a_token_meets_all_matrices_but_the_embedding_and_experts_that_it_did_not_choose():
    # 36 layers and the words at the end, twice; in each layer scores of 32 heads of 128 against 100 tokens, and sums
    weights = 36 * 192_946_432 + 622_329_856
    assert parse_shape(QWEN3_8B).operations(100, predicts=True) == 2 * weights + 36 * 4 * 4096 * 100
    assert parse_shape(QWEN3_8B).operations(0, predicts=False) == 2 * 36 * 192_946_432
    shape = parse_shape(QWEN3_30B_A3B)
    # 8 of 128 experts of 3 x 2048 x 768 in each of 48 layers
    others = 48 * 120 * 3 * 2048 * 768
    assert shape.operations(0, predicts=False) == pytest.approx(2 * (shape.parameters - shape.rest - others))


QWEN2_5_VL_7B = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584},
}
"""As published, with the decoder's settings beside those of the tower."""


def test_a_model_that_sees_has_a_decoder_and_a_tower():
    shape = parse_shape(QWEN2_5_VL_7B)
    # 7,615,616,512 of the decoder, which is Qwen2.5-7B, and 676,550,144 of the tower: 8,292,166,656 as published
    assert shape.parameters == 7_615_616_512
    assert shape.vision.parameters == 676_550_144


def test_pictures_keep_patches_and_embeddings_and_what_a_trained_tower_computed():
    gated = replace(parse_shape(QWEN2_5_VL_7B).vision, hidden=10, intermediate=20, depth=3, output=5, patch_numbers=6)
    plain = replace(gated, gated=False, levels=2)
    # one token of 4 patches: 4 x 6 x 4 of patches, 5 x 2 of the token; of a tower that adds to three layers thrice
    assert gated.kept_bytes(1, 2, trained=False) == 96 + 10
    assert plain.kept_bytes(1, 2, trained=False) == 96 + 30
    # trained: patches in bf16, three blocks, and 4 x 4 x 10 x 2 of the last layer
    assert gated.kept_bytes(1, 2, trained=True) == 106 + 48 + 3 * 4 * 2 * (150 + 80) + 320
    assert gated.kept_bytes(1, 4, trained=True) == 96 + 20 + 3 * 4 * 4 * (110 + 80) + 640
    assert plain.kept_bytes(1, 2, trained=True) == 126 + 48 + 3 * 4 * 2 * (110 + 40) + 320
    assert gated.kept_bytes(1, 2, trained=True, recompute=True) == 106 + 48 + 3 * 4 * 2 * 10 + 320
    # at work: patches as it reads them and a block, which is computed again with what it keeps
    assert gated.working_bytes(1, 2) == 48 + 4 * 2 * (70 + 40)
    assert gated.working_bytes(1, 2, again=True) == 48 + 4 * 2 * (150 + 80)
