"""The rows of one forward pass as tensors on a device, and what a model makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.linear_log_probs import EntropyUse, LastLayer, LinearLogProbs
from rljob_worker.engines.models.last_layer import Wanted
from rljob_worker.engines.packing import PackedRows, pack
from rljob_worker.engines.varlen_attention import PackedLayout
from rljob_worker.errors import BadData


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Packed rows on a device; see `packing` for what the indices mean."""

    token_ids: torch.Tensor
    """[1, tokens]"""
    positions: torch.Tensor
    """[1, tokens]"""
    layout: PackedLayout
    predicts: torch.Tensor
    """[responses]"""
    targets: torch.Tensor
    """[responses]"""
    row: torch.Tensor
    """[responses]"""
    num_rows: int

    @staticmethod
    def build(rows: PackedRows, device: torch.device) -> MicroBatch:
        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        layout = PackedLayout.build(rows.sequences, rows.sequence_lengths, len(rows.token_ids), device)
        return MicroBatch(
            on_device(rows.token_ids)[None],
            on_device(rows.positions)[None],
            layout,
            on_device(rows.predicts),
            on_device(rows.targets),
            on_device(rows.row),
            rows.num_rows,
        )

    @staticmethod
    def of(batch: Batch, rows: np.ndarray, device: torch.device) -> MicroBatch:
        """From some rows of a batch that has `prompt_ids` and `response_ids`."""
        return MicroBatch.build(
            pack(batch.column_of("prompt_ids", rows), batch.column_of("response_ids", rows)), device
        )


def response_last_layer(model: torch.nn.Module, rows: MicroBatch) -> LastLayer:
    """What a causal LM makes the logits of the response tokens of."""
    found: LastLayer = model(
        input_ids=rows.token_ids,
        position_ids=rows.positions,
        use_cache=False,
        attention_layout=rows.layout,
        last_layer_at=rows.predicts,
    )
    return found


def response_log_probs(
    model: torch.nn.Module,
    rows: MicroBatch,
    temperature: float,
    *,
    entropy: EntropyUse = "None",
    reference: LastLayer | None = None,
) -> LinearLogProbs:
    """Of the response tokens, and what else is asked of the distributions they came from; logits never exist for all
    of them."""
    found: LinearLogProbs = model(
        input_ids=rows.token_ids,
        position_ids=rows.positions,
        use_cache=False,
        attention_layout=rows.layout,
        wanted=Wanted(rows.predicts, rows.targets, temperature, entropy, reference),
    )
    return found


def response_columns(
    batch: Batch, names: tuple[str, ...], rows: np.ndarray, like: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Columns of some rows as tensors: ragged ones packed, on the device of `like`; floats in its dtype."""
    lengths = batch["response_ids"].lengths[rows]
    return {name: _as_tensor(name, batch.column_of(name, rows), lengths, like) for name in names}


def _as_tensor(name: str, column: Column, response_lengths: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    if column.is_ragged and name != "prompt_ids" and not np.array_equal(column.lengths, response_lengths):
        raise BadData(
            f"column {name!r} does not have one value per response token; a stage that writes a per-token column must "
            "keep the lengths of response_ids"
        )
    values = column.values.view(np.uint16) if column.dtype == "bfloat16" else column.values
    tensor = torch.from_numpy(values)
    if column.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
