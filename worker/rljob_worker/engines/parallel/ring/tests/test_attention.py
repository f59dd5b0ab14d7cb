"""Attention round a ring of real processes over gloo, against that of one rank which has whole rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rljob_worker.batch import Column
from rljob_worker.engines.attention.varlen import Formula, PackedLayout
from rljob_worker.engines.packing import PackedRows, pack
from rljob_worker.engines.parallel.ring.attention import RingLayout
from rljob_worker.engines.tests.builders import some_slow
from rljob_worker.engines.tests.peak import Peak
from rljob_worker.engines.tests.ranks import run_ranks

CPU = torch.device("cpu")
KEY_HEADS, ASKING, HEAD_DIM = 2, 3, 8
FORMULAS = {
    "plain": Formula(),
    "scaled": Formula(scale=0.3),
    "window": Formula(window=5),
    "bounded": Formula(cap=0.7),
    "all": Formula(scale=0.9, window=40, cap=1.1),
}
TOKENS = 1260
"""Of all rows: 30 + 19 + 0 + 300 of the first prompt, 400 + 511 of the other. 2, 3 and 4 ranks have as many each, two
of them more than a tile."""

Found = dict[str, tuple[torch.Tensor, ...]]


def rows() -> PackedRows:
    """Two prompts, of three rows and of one, one of them much longer than a tile."""
    prompts = Column.ragged([[7] * 30] * 3 + [[8] * 400])
    return pack(prompts, Column.ragged([[9] * length for length in (20, 1, 301, 512)]))


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values and the gradient of what comes out, [1, heads, tokens, head_dim]."""
    generator = torch.Generator().manual_seed(0)
    heads = (KEY_HEADS * ASKING, KEY_HEADS, KEY_HEADS, KEY_HEADS * ASKING)
    return [
        torch.randn(1, head, TOKENS, HEAD_DIM, generator=generator, dtype=torch.float64).to(dtype) for head in heads
    ]


def attend(rank: int, ranks: int, dtype: torch.dtype) -> Found:
    """By formula what this rank's tokens get, and the gradients of their queries, keys and values."""
    packed = rows()
    layout = RingLayout.build(packed, TOKENS, dist.group.WORLD) if ranks > 1 else whole(packed)
    result = {}
    for name, formula in FORMULAS.items():
        *inputs, gradient = (tensor[:, :, rank::ranks].contiguous() for tensor in tensors(dtype))
        for item in inputs:
            item.requires_grad_(True)
        out = layout.attend(*inputs, formula)
        out.backward(gradient.transpose(1, 2))
        result[name] = (out.detach().transpose(1, 2), *(item.grad for item in inputs))
    return result


def whole(packed: PackedRows) -> PackedLayout:
    assert len(packed.token_ids) == TOKENS
    return PackedLayout.build(packed.sequences, packed.sequence_lengths, TOKENS, CPU)


@pytest.fixture(scope="module")
def alone() -> Found:
    return attend(0, 1, torch.float64)


@pytest.mark.parametrize("ranks", some_slow([2, 3, 4], 3))
def test_what_goes_round_gives_what_one_rank_computes(tmp_path: Path, alone: Found, ranks: int) -> None:
    result = run_ranks(ranks, attend, tmp_path, ranks, torch.float64)
    for name in FORMULAS:
        for rank, parts in enumerate(item[name] for item in result):
            for part, expected in zip(parts, alone[name], strict=True):
                torch.testing.assert_close(part, expected[:, :, rank::ranks], atol=1e-12, rtol=0)


def test_half_precision_is_added_up_in_float32(tmp_path: Path, alone: Found) -> None:
    # bfloat16 has 8 bits: of numbers up to 4, errors up to 2^-7, here of what goes in and of what comes out
    result = run_ranks(2, attend, tmp_path, 2, torch.bfloat16)
    for rank, parts in enumerate(item["plain"] for item in result):
        for part, expected in zip(parts, alone["plain"], strict=True):
            assert part.dtype == torch.bfloat16
            torch.testing.assert_close(part.double(), expected[:, :, rank::2], atol=0.1, rtol=0.05)


def peaks(_rank: int, own_tokens: int) -> tuple[int, int, int]:
    """Bytes of forward and backward passes at most, and of this rank's keys and values. Each has as many tokens."""
    ranks = dist.get_world_size()
    packed = pack(Column.ragged([[7]]), Column.ragged([[9] * (own_tokens * ranks)]))
    layout = RingLayout.build(packed, own_tokens * ranks, dist.group.WORLD)
    query, key, value = (torch.randn(1, heads, own_tokens, 128, requires_grad=True) for heads in (4, 4, 4))
    with Peak() as forward:
        out = layout.attend(query, key, value, Formula(window=1))  # next to nothing is computed
    with Peak() as backward:
        out.sum().backward()
    return forward.bytes(), backward.bytes(), 2 * key.numel() * key.element_size()


def test_a_rank_has_the_keys_of_two_others_however_many_there_are(tmp_path: Path) -> None:
    three, four = (run_ranks(ranks, peaks, tmp_path / str(ranks), 2048)[0] for ranks in (3, 4))
    for few, many in zip(three[:2], four[:2], strict=True):
        assert many == pytest.approx(few, rel=0.02)
    forward, _, block = four
    # its own and two others', queries and what they get, half a block each, a tile; five with those of one more
    assert 4 * block <= forward < 5 * block
