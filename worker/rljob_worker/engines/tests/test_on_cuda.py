"""What a forward pass asks of a CUDA device, on one without numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rljob_worker.engines.log_probs import linear
from rljob_worker.engines.micro_batch import MicroBatch, response_columns, response_log_probs
from rljob_worker.engines.models import empty_policy
from rljob_worker.engines.parallel import expert
from rljob_worker.engines.tests.builders import VOCABULARY, a_batch, write_config
from rljob_worker.engines.tests.deterministic_job import deterministic_job
from rljob_worker.engines.tests.fake_cuda import CUDA, MEMORY, Asked, on_cuda, recorded, world_of_fakes

BATCH = a_batch([5, 1, 9, 3])
ROWS = np.arange(len(BATCH))


def a_micro_batch(monkeypatch: pytest.MonkeyPatch, directory: Path, family: str, dtype: torch.dtype) -> Asked:
    """A forward pass with entropies, and the columns that an objective reads."""
    model = empty_policy(write_config(directory, family), dtype).eval()
    with on_cuda(monkeypatch, model):
        response_log_probs(model, MicroBatch.of(BATCH, ROWS, CUDA), 0.8)  # with what is made once in a process
        with recorded() as asked:
            rows = MicroBatch.of(BATCH, ROWS, CUDA)
            outputs = response_log_probs(model, rows, 0.8, entropy="Figure")
            columns, _ = response_columns(BATCH, ("advantages", "weight"), ROWS, like=outputs.log_probs)
    assert outputs.log_probs.device == columns["advantages"].device == CUDA
    return asked


BF16, FP32 = torch.bfloat16, torch.float32


# of experts in float32 torch's grouped product is a loop on CUDA, which this one does not have
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("qwen3", BF16), ("qwen3_moe", BF16), ("mistral", BF16), ("qwen3", FP32), ("mistral", FP32)],
    ids=str,
)
def test_a_forward_pass_waits_for_nothing_and_copies_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    asked = a_micro_batch(monkeypatch, tmp_path, family, dtype)
    assert asked.waits == []
    assert asked.copies == ["pinned", "pinned"]  # rows and columns


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "mistral"])
def test_rows_in_bfloat16_attend_by_the_kernel_for_rows_of_different_lengths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
) -> None:
    asked = a_micro_batch(monkeypatch, tmp_path, family, BF16)
    assert asked.kernels["_varlen_attn"] == 2 and asked.attentions == []  # one a layer


def test_experts_are_grouped_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = a_micro_batch(monkeypatch, tmp_path, "qwen3_moe", BF16)
    assert asked.kernels["_grouped_mm"] == 4  # two of each layer


def test_spread_experts_wait_for_nothing_but_what_ranks_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of two experts each: of three tokens with two choices four are of the first rank."""
    agreed = list[list[int]]()

    def agree(sent: torch.Tensor, _group: object) -> tuple[list[int], list[int]]:
        agreed.append(sent.tolist())  # the wait that there is
        return agreed[-1], agreed[-1]

    monkeypatch.setattr(expert, "agree_on_numbers", agree)
    chosen, hidden = torch.tensor([[0, 1], [1, 3], [2, 0]]), torch.ones(3, 4)
    with world_of_fakes(0, 2), recorded() as asked:
        expert.compute_with_experts(lambda tokens, *_: tokens, 2, dist.group.WORLD, hidden, chosen, torch.ones(3, 2))
    assert (agreed, asked.waits) == ([[4, 2]], [])


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_grouped_heads_in_float32_do_not_get_the_kernel_that_keeps_scores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
) -> None:
    asked = a_micro_batch(monkeypatch, tmp_path, family, FP32)
    heads = {item["heads"] for item in asked.attentions}
    assert heads == {(4, 4)} and not any(item["grouped"] for item in asked.attentions)


def test_a_deterministic_job_does_not_split_the_keys_of_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with deterministic_job():
        asked = a_micro_batch(monkeypatch, tmp_path, "qwen3", BF16)
    assert asked.num_splits == [1, 1] and asked.waits == []
    assert a_micro_batch(monkeypatch, tmp_path, "qwen3", BF16).num_splits == [None, None]


def test_logits_are_computed_of_as_many_tokens_as_the_device_has_room_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(linear, "logits_elements", lambda memory: 4 * VOCABULARY if memory == MEMORY else 0)
    asked = a_micro_batch(monkeypatch, tmp_path, "qwen3", BF16)
    assert asked.kernels["_log_softmax"] == 5  # 18 tokens, four at a time
