"""What loaders of vLLM may ask of a slice that stands for a whole tensor."""

import pytest
import torch

from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.engines.rollout.slices import cut
from rljob_worker.engines.rollout.vllm.weights.kept_slice import KeptSlice

SLICES = WeightSlices(tensor=2, heads=4, key_heads=2)
ROWS, COLUMNS = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
FUSED = "model.layers.0.mlp.gate_up_proj.weight"
WHOLE = torch.arange(24.0).view(6, 4)


def kept(name, rank=1, whole=WHOLE):
    part = SLICES.part(name, whole.shape, rank)
    return KeptSlice.of(cut(whole, part).clone(), part, whole.shape)


def test_it_looks_like_the_whole():
    tensor = kept(ROWS)
    assert (tensor.shape, tensor.dim(), tensor.ndim, tensor.device.type) == ((6, 4), 2, 2, "cpu")
    assert tensor.dtype == torch.float32 and tensor.is_floating_point() and tensor.size(1) == 4


def test_what_is_here_comes_as_a_plain_tensor():
    for result in (kept(ROWS).narrow(0, 3, 3), kept(ROWS).narrow(0, 4, 1).narrow(0, 0, 1)):
        assert type(result) is torch.Tensor
    assert torch.equal(kept(ROWS).narrow(0, 3, 3), WHOLE[3:])
    assert torch.equal(kept(COLUMNS).narrow(1, 2, 2), WHOLE[:, 2:])
    assert torch.equal(kept(COLUMNS, rank=0).narrow(-1, 0, 2), WHOLE[:, :2])


def test_an_axis_more_and_less_changes_nothing():
    """As loaders of experts do: one expert is a list of one."""
    (rows,) = kept(ROWS).unsqueeze(0).unbind()
    (columns,) = kept(COLUMNS).unsqueeze(0).unbind()
    assert torch.equal(rows.narrow(0, 3, 3), WHOLE[3:]) and torch.equal(columns.narrow(1, 2, 2), WHOLE[:, 2:])
    assert torch.equal(kept(COLUMNS).unbind(0)[2].narrow(0, 2, 2), WHOLE[2, 2:])
    assert torch.equal(kept(ROWS).narrow(1, 1, 2).narrow(0, 3, 3), WHOLE[3:, 1:3])


def test_of_a_matrix_of_several_a_loader_takes_each_and_then_its_own():
    """Rows 0 and 1 of the gate and 4 and 5 of the other, of four each."""
    fused = torch.arange(24.0).view(8, 3)
    up = kept(FUSED, rank=0, whole=fused).narrow(0, 4, 4)
    assert up.shape == (4, 3) and torch.equal(up.narrow(0, 0, 2), fused[4:6])
    assert torch.equal(kept(FUSED, rank=0, whole=fused).narrow(0, 0, 4).narrow(0, 0, 2), fused[:2])


def test_loaders_write_on_each_of_several_which_part_it_is():
    first = kept(ROWS)
    first.shard_id = "q"
    other = first.detach()
    other.shard_id = "k"
    assert (first.shard_id, other.shard_id) == ("q", "k") and torch.equal(other.narrow(0, 3, 3), WHOLE[3:])


def test_a_rank_without_words_takes_none():
    """Of 40 words, counted up to 64, the second of two ranks has 8, of 30 it has none."""
    words = torch.arange(30.0).view(30, 1)
    assert kept("lm_head.weight", whole=words).narrow(0, 30, 0).shape == (0, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tensor: torch.zeros(6, 4).copy_(tensor),
        lambda tensor: torch.zeros(4, 4).copy_(tensor.narrow(0, 2, 4)),
        lambda tensor: tensor + 1,
        lambda tensor: tensor.t(),
        lambda tensor: tensor[3:],
        lambda tensor: tensor.unbind(),
    ],
)
def test_what_is_not_here_cannot_be_read(ask):
    with pytest.raises((TypeError, AttributeError, AssertionError)):
        ask(kept(ROWS))


def test_rows_of_another_rank_are_refused():
    with pytest.raises(IndexError, match="0 to 2 of an axis of 6: this rank keeps others"):
        kept(ROWS).narrow(0, 0, 2)
