"""A model of two layers of 100 parameters and 60 beside them, in numbers that a head can follow."""

from dataclasses import dataclass, replace

import pytest

from rljob_api.memory import activations as passing
from rljob_api.memory import parallel_layout as lying
from rljob_api.memory.activations import activations, logits_bytes, scores_bytes
from rljob_api.memory.generation import draw_bytes, row_cache_bytes
from rljob_api.memory.model_shape import FAMILIES, ModelShape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.training import update_memory
from rljob_api.v1alpha1.training import OffloadSpec

SHAPE = ModelShape(
    FAMILIES["llama"], vocabulary=10, hidden=4, intermediate=6, layers=2, heads=2, key_heads=1, head_dim=2, tied=True
)
# layer: 4 x (4 + 2 x 2) + 4 x 4 + 3 x 4 x 6 + 2 x 4 = 128; rest: 40 + 4; all: 300


def layout(**changes):
    return ParallelLayout(**{"shape": SHAPE, "ranks": 1, "stored": 4, "computed": 4, "on_cpu": True, **changes})


def test_weights_are_divided_and_gathered_to_compute_with():
    alone, sharded = layout(), layout(ranks=4)
    assert (alone.shard, alone.gathered) == (1200, 0)
    assert (sharded.shard, sharded.gathered) == (300, 1200)  # a small model stays whole between micro-batches
    # an adapter is kept in four bytes: in bf16 it is not what is computed with, and all is gathered
    assert (layout(adapter=9).gathered, layout(adapter=9, stored=2, computed=2).gathered) == (0, 600)


def test_a_layer_keeps_what_its_backward_pass_needs():
    # norms 2 x 2 x 4, attention 3 x 4 + 2 x 2, MLP 4 x 6: 56 of a token; outside the layers 4 x 4 + 2 x 2 = 20
    assert activations(layout(), 10, recompute=False) == (2 * 56 + 20) * 10 * 4
    assert activations(layout(), 10, recompute=True) == (2 * 4 + 20) * 10 * 4  # inputs of both layers


@pytest.mark.parametrize(
    "family, computed, adapter, norms",
    [
        ("llama", 4, 0, 2 * 2 * 4),
        ("llama", 2, 0, 2 * 4 * 4),  # what is normed in 4 bytes, and as `llama` in 4
        ("llama", 2, 9, 2 * 3 * 4),  # without what the gradient of a weight needs
        ("gemma2", 4, 0, (2 * 2 + 2 * 1) * 4),  # two of four that a matrix reads
        ("gemma2", 2, 0, (2 * 5 + 2 * 4) * 4),
        ("gpt2", 2, 0, 2 * 2 * 4),
        ("qwen3", 2, 0, 2 * 4 * 4 + 3 * (4 + 2)),  # and of queries and keys, which no matrix reads
    ],
)
def test_a_norm_keeps_what_it_reads_and_what_is_read_of_it(family, computed, adapter, norms):
    shape = replace(SHAPE, family=replace(FAMILIES[family], projections=3))
    result = activations(layout(shape=shape, computed=computed, adapter=adapter), 10, recompute=False)
    assert result == (2 * (norms + 16 + 24) + 20) * 10 * computed


def test_a_norm_in_one_kernel_keeps_what_it_norms_and_what_is_read_of_it():
    shape = replace(SHAPE, family=FAMILIES["qwen3"])
    result = activations(layout(shape=shape, computed=2, fuses_norms=True), 10, recompute=False)
    assert result == (2 * (2 * 2 * 4 + (4 + 2) + 16 + 24) + 20) * 10 * 2


def test_key_heads_are_repeated_on_accelerators_in_float32():
    here, there, ring = (
        activations(layout(on_cpu=on_cpu, ring=ring), 10, recompute=False)
        for on_cpu, ring in ((True, False), (False, False), (False, True))
    )
    assert there - here == 2 * 10 * 2 * (4 - 2) * 4  # layers, tokens, keys and values
    assert ring == activations(layout(ring=True), 10, recompute=False)  # whose tiles read one head for several


def test_on_its_way_back_a_layer_has_gradients_in_its_mlp_and_may_be_computed_again():
    kept, again = (update_memory(layout(), 10, 0, 2, recompute=recompute) for recompute in (False, True))
    # of gate and up 6 each
    assert kept.activations == (2 * 56 + 20 + 2 * 6) * 10 * 4
    # inputs of both layers, and one layer's 56
    assert again.activations == (2 * 4 + 20 + 56 + 2 * 6) * 10 * 4
    assert again.peak == 1200 + again.activations
    plain = layout(shape=replace(SHAPE, family=replace(SHAPE.family, projections=2)))
    assert update_memory(plain, 10, 0, 2, recompute=False).activations == (2 * (56 - 12) + 20 + 6) * 10 * 4


def test_logits_are_gone_when_a_layer_is_on_its_way_back():
    few, many = (update_memory(layout(), 10, responses, 2, recompute=True) for responses in (1, 100))
    # the gradient of the last layer, 40, waits for that of the embedding
    assert few.logits == (4 * 10 + 40) * 4 and few.peak == 1200 + few.activations + 40 * 4
    assert many.peak == 1200 + (2 * 4 + 20) * 10 * 4 + many.logits


def test_micro_batches_that_are_on_their_way_keep_theirs_and_one_layer_is_computed_again():
    assert activations(layout(), 10, recompute=False, micro_batches=3) == 3 * (2 * 56 + 20) * 10 * 4
    result = update_memory(layout(), 10, 0, 3, recompute=True, on_their_way=3)
    # inputs of both layers and what is around them, thrice, and one layer's 56 and 12
    assert result.activations == (3 * (2 * 4 + 20) + 56 + 12) * 10 * 4
    result = update_memory(layout(), 10, 0, 2, recompute=False, on_their_way=3)  # of two there are no three
    assert result.activations == (2 * (2 * 56 + 20) + 12) * 10 * 4


def test_ranks_that_split_matrices_share_the_tokens_outside_of_them():
    # of 4 of each norm two, and 4 that all matrices read; outside the layers 4 x 2 + 2 x 2
    assert activations(layout(tensor=2), 10, recompute=False) == (2 * (56 - 2 * 2) + 12) * 10 * 4
    assert activations(layout(tensor=2), 10, recompute=True) == (2 * 2 + 12) * 10 * 4


def test_gradients_of_layers_that_are_reduced_are_there_when_what_they_kept_is_gone(monkeypatch):
    monkeypatch.setattr(lying, "MIN_UNIT_BYTES", 1)  # each layer, of 128 parameters, is reduced by itself
    sharded = layout(ranks=4, held_bytes=0)
    result = update_memory(sharded, 10, 0, 2, recompute=False)
    assert result.gradients == 300 + 2 * 128 * 4
    # 300 of earlier micro-batches, beside what all layers keep: two of 128 are less than one layer's 56 x 10
    assert result.peak == 300 + (2 * 56 + 20 + 12) * 10 * 4
    assert update_memory(sharded, 10, 50, 2, recompute=False).peak == (
        300 + (2 * 56 + 20) * 10 * 4 + logits_bytes(sharded, 50, trained=True)
    )
    # where layers keep their inputs alone, both are there
    assert update_memory(sharded, 10, 0, 2, recompute=True).peak == 300 + 2 * 128 * 4 + (2 * 4 + 20 + 56 + 12) * 10 * 4


def test_a_prompt_that_rows_share_is_attended_over_by_each():
    # 5 tokens of queries and outputs of 4 and keys and values of 2, in each of two layers
    more = activations(layout(), 10, recompute=False, attended=15) - activations(layout(), 10, recompute=False)
    assert more == 2 * 5 * 2 * (4 + 2) * 4


def test_keys_and_values_of_two_others_visit_a_rank_of_a_ring():
    # 10 tokens of keys and values of 2 in 4 bytes, those of two ranks, and gradients of three
    more = activations(layout(ring=True), 10, recompute=True) - activations(layout(), 10, recompute=True)
    assert more == 10 * (2 + 2) * (2 + 3) * 4


def test_logits_are_never_more_than_a_chunk():
    # four times 3 tokens of 10 words, and the gradient of the last layer
    assert logits_bytes(layout(), 3, trained=True) == 4 * 3 * 10 * 4 + 40 * 4
    assert logits_bytes(layout(logits_elements=100), 1000, trained=True) == 4 * 100 * 4 + 40 * 4
    # compared with others it is one kept and three more in four bytes
    compared = layout(computed=2, logits_elements=100, compares_logits=True)
    assert logits_bytes(compared, 32, trained=True) == (2 + 3 * 4) * 100 + 40 * 4
    assert logits_bytes(layout(), 0, trained=True) == 0  # a critic
    # in bf16 three kept chunks and two in four bytes; who is only asked has one and those two
    assert logits_bytes(layout(computed=2, logits_elements=100), 30, trained=True) == (3 * 2 + 2 * 4) * 100 + 40 * 4
    assert logits_bytes(layout(computed=2), 3, trained=False) == (2 + 2 * 4) * 3 * 10


def test_a_last_chunk_that_is_not_full_goes_back_first():
    # of 32 tokens in tens the two is gone when the third ten comes back: two kept, and two in four bytes
    few = layout(computed=2, logits_elements=100)
    assert logits_bytes(few, 32, trained=True) == (2 * 2 + 2 * 4) * 100 + 40 * 4
    # of 39 tokens the nine have most: beside them two kept tens, and 9 x 10 x (2 + 2 x 4) of their own
    assert logits_bytes(few, 39, trained=True) == 2 * 2 * 100 + 90 * (2 + 2 * 4) + 40 * 4


def test_scores_that_are_bounded_are_there_for_one_layer_and_never_more_than_some(monkeypatch):
    bounded = layout(shape=replace(SHAPE, bounded=True))
    # 2 heads x 10 tokens x 5 of the longest row: scores, and three more numbers of each on the way back, two to score
    assert scores_bytes(bounded, 10, 5, trained=True) == 2 * 10 * 5 * (4 + 3 * 4)
    assert scores_bytes(bounded, 10, 5, trained=False) == 2 * 10 * 5 * (4 + 2 * 4)
    assert scores_bytes(replace(bounded, computed=2), 10, 5, trained=True) == 2 * 10 * 5 * (2 + 3 * 4)
    assert all(scores_bytes(item, 10, 5, trained=True) == 0 for item in (layout(), replace(bounded, ring=True)))
    result, without = (update_memory(item, 10, 0, 2, recompute=True, longest=50) for item in (bounded, layout()))
    # in place of 12 of the MLP's gradients, and of what is kept behind attention: a norm's 2 x 4, and 4 x 6
    assert result.activations - without.activations == 1000 * 16 - (12 + 8 + 24) * 10 * 4
    assert result.peak - without.peak == result.activations - without.activations
    monkeypatch.setattr(passing, "SCORES_ELEMENTS", 60)
    assert scores_bytes(bounded, 10, 5, trained=True) == 60 * 16


@pytest.mark.parametrize(
    "ranks, held_bytes, micro_batches, gradients",
    [
        (1, 1 << 30, 1, 1200),
        (4, 1 << 30, 4, 1200),  # whole, until the last micro-batch reduces them
        (4, 1 << 30, 1, 300 + 2 * 1200),  # a model of a few bytes is reduced as one unit
        (4, 0, 4, 300 + 2 * 1200),
    ],
)
def test_gradients_add_up_whole_or_in_parts(ranks, held_bytes, micro_batches, gradients):
    update = update_memory(layout(ranks=ranks, held_bytes=held_bytes), 10, 5, micro_batches, recompute=False)
    assert update.gradients == gradients


def test_gradients_are_there_from_the_second_micro_batch_on():
    one, several = (update_memory(layout(), 10, 5, count, recompute=False) for count in (1, 2))
    together = (2 * 56 + 20) * 10 * 4 + one.logits
    assert one.peak == max(together, 1200 + 56 * 10 * 4 // 2) and several.peak == together + 1200
    bounded = layout(shape=replace(SHAPE, bounded=True))
    # in the first layer all gradients are there, too, and scores of 2 heads x 1 x 500
    assert update_memory(bounded, 1, 0, 1, recompute=True, longest=500).peak == 1200 + 2 * 1 * 500 * 16


def test_states_that_come_back_for_a_step_lie_beside_all_gradients():
    waiting = layout(offload=OffloadSpec(optimizer=True))
    assert waiting.stepped == 2 * 1200, "two states of so few bytes come at once"
    assert update_memory(waiting, 1, 0, 1, recompute=True).peak == 1200 + waiting.stepped


def test_large_models_are_gathered_in_units_of_layers():
    @dataclass(frozen=True)
    class Large:
        layer = 4 << 20
        rest = 10 << 20
        layers = 16
        layer_experts = all_experts = 0
        parameters = layers * layer + rest

    result = layout(shape=Large(), ranks=8, held_bytes=0)
    # two layers of 16 MiB make a unit of 32; three of those beside the rest
    assert result.unit == 8 << 20 and result.gathered == (10 + 3 * 8) * 4 << 20


def test_a_cache_has_keys_and_values_of_every_token():
    # 100 columns x 2 layers x 2 x a width of 2 x 2 bytes
    assert row_cache_bytes(SHAPE, 100, 2) == 100 * 2 * 2 * 2 * 2
    assert draw_bytes(SHAPE, 3, 2) == 3 * 3 * 10 * 4
