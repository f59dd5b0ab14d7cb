"""One table between Megatron-core's matrices and those of files, whichever rows of them a rank has."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.megatron.names import MegatronNames, Woven
from rljob_worker.engines.models import checkpoint_tensors
from rljob_worker.engines.parallel.split import UNSPLIT, Split
from rljob_worker.engines.tests.builders import CONFIGS

CONFIG = CONFIGS["qwen2"]()
"""Hidden size 32: four heads of eight rows, two of queries to one of keys."""
NAMES = MegatronNames.of(CONFIG, 8)
LAYER = "model.layers.1"
QKV = f"{LAYER}.self_attention.linear_qkv"


def rows(first: int, count: int) -> torch.Tensor:
    """[count, 1] of ascending numbers."""
    return torch.arange(first, first + count, dtype=torch.float32)[:, None]


def test_a_matrix_of_queries_keys_and_values_is_three_of_a_file() -> None:
    # 32 rows of queries from 0, 16 of keys from 100, 16 of values from 200; two groups
    woven = torch.cat([rows(0, 16), rows(100, 8), rows(200, 8), rows(16, 16), rows(108, 8), rows(208, 8)])
    result = dict(checkpoint_tensors([(f"{QKV}.weight", woven)], NAMES.parts_of))
    stem = f"{LAYER}.self_attn"
    assert list(result) == [f"{stem}.{name}.weight" for name in ("q_proj", "k_proj", "v_proj")]
    assert all(
        torch.equal(tensor, expected)
        for tensor, expected in zip(result.values(), (rows(0, 32), rows(100, 16), rows(200, 16)), strict=True)
    )


def test_gate_and_up_alternate_and_the_rest_has_another_name_or_none() -> None:
    woven = torch.stack([rows(0, 3), rows(10, 3)], 1).flatten(0, 1)
    ones = torch.ones(2)
    named = [
        (f"{LAYER}.mlp.linear_fc1.weight", woven),
        (f"{LAYER}.pre_mlp_layernorm.weight", ones),
        (f"{LAYER}.input_layernorm.weight", ones),
        ("model.embed_tokens.weight", ones),
    ]
    result = dict(checkpoint_tensors(named, NAMES.parts_of))
    assert torch.equal(result.pop(f"{LAYER}.mlp.gate_proj.weight"), rows(0, 3))
    assert torch.equal(result.pop(f"{LAYER}.mlp.up_proj.weight"), rows(10, 3))
    names = ("post_attention_layernorm", "input_layernorm")
    assert list(result) == [*(f"{LAYER}.{name}.weight" for name in names), "model.embed_tokens.weight"]
    assert all(tensor is ones or tensor.data_ptr() == ones.data_ptr() for tensor in result.values())


def test_each_of_two_ranks_reads_its_own_heads() -> None:
    files = {"q_proj": rows(0, 32), "k_proj": rows(100, 16), "v_proj": rows(200, 16)}
    for rank, expected in enumerate(
        ([rows(0, 16), rows(100, 8), rows(200, 8)], [rows(16, 16), rows(108, 8), rows(208, 8)])
    ):
        own = torch.full((32, 1), -1.0)
        for part in NAMES.parts_of(f"{QKV}.weight", own, Split((rank, 2))):
            assert part.shape == files[part.name.split(".")[-2]].shape
            part.read(files[part.name.split(".")[-2]])
        assert torch.equal(own, torch.cat(expected))


def test_columns_of_a_row_parallel_matrix_are_a_ranks_own() -> None:
    whole = torch.arange(12.0).view(3, 4)
    own = torch.empty(3, 2)
    (part,) = NAMES.parts_of(f"{LAYER}.mlp.linear_fc2.weight", own, Split((1, 2)))
    part.read(whole)
    assert part.name == f"{LAYER}.mlp.down_proj.weight" and torch.equal(own, whole[:, 2:])


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 6),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_any_cuts_of_the_rows_have_every_row_of_every_source_once_and_in_order(
    runs: list[int], turns: int, cuts: list[float]
) -> None:
    woven = Woven(tuple(map(str, range(len(runs)))), tuple(runs))
    height = sum(runs) * turns
    ends = sorted({0, height, *(round(cut * height) for cut in cuts)})
    # by hand: which source and which of its rows each row is
    expected = [
        (source, turn * run + row) for turn in range(turns) for source, run in enumerate(runs) for row in range(run)
    ]
    result: list[tuple[int, int] | None] = [None] * height
    for start, stop in zip(ends, ends[1:], strict=False):
        for source in range(len(runs)):
            there, mine = woven.rows_of(source, slice(start, stop))
            for row, place in zip(range(there.start, there.stop), mine, strict=True):
                assert result[start + place] is None
                result[start + int(place)] = (source, row)
    assert result == expected


def test_reading_and_giving_back_keeps_every_bit() -> None:
    generator = np.random.default_rng(0)
    files = {name: torch.from_numpy(generator.normal(size=(height, 3))) for name, height in (("q", 32), ("k", 16))}
    stems = {"q_proj": files["q"], "k_proj": files["k"], "v_proj": files["k"] + 1}
    own = torch.empty(64, 3, dtype=torch.float64)
    for part in NAMES.parts_of(f"{QKV}.weight", own, UNSPLIT):
        part.read(stems[part.name.split(".")[-2]])
    for name, tensor in checkpoint_tensors([(f"{QKV}.weight", own)], NAMES.parts_of):
        assert torch.equal(tensor, stems[name.split(".")[-2]])
