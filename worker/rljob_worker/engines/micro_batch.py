"""The rows of one forward pass as tensors on a device, and what a model makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rljob_api.catalogue.columns import ROUTES, STATE
from rljob_worker.batch import Batch, Column, Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.devices.copies import on_device
from rljob_worker.engines.attention.both_ways import BothWaysLayout
from rljob_worker.engines.attention.varlen import AttentionLayout, PackedLayout
from rljob_worker.engines.decision_packing import OneForward, pack_decisions
from rljob_worker.engines.log_probs.linear import EntropyUse, LastLayer, LinearLogProbs
from rljob_worker.engines.models.last_layer import Wanted
from rljob_worker.engines.models.vision import PictureTensors, picture_tensors
from rljob_worker.engines.packing import PackedRows, pack
from rljob_worker.engines.parallel.context import Places, Sharing, SplitHeads, SplitTokens
from rljob_worker.engines.parallel.ring.attention import RingLayout
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.errors import BadData


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Packed rows on a device; see `packing` for what the indices mean. Where the ranks of a copy share its tokens
    (see `parallel.context`), tokens and what is predicted at them are this rank's; rows are whole everywhere."""

    token_ids: torch.Tensor
    """[1, own tokens]"""
    positions: torch.Tensor
    """[1, tokens], or [4, 1, tokens] where rows may have pictures: of the ranks that split matrices, this one's own
    where it does not."""
    layout: AttentionLayout
    predicts: torch.Tensor
    """[own responses]"""
    targets: torch.Tensor
    """[own responses]"""
    row: torch.Tensor
    """[responses]"""
    num_rows: int
    places: Places | None = None
    """Which rank predicts which response token; None where this one predicts all."""
    routes: torch.Tensor | None = None
    """[own tokens, layers, k] experts that compute each, where they are given."""
    arrived: torch.Tensor | None = None
    """[1, own tokens, hidden]: what earlier layers made of them, where this rank has only later ones."""
    pictures: PictureTensors | None = None
    """What own tokens show; None where no token of the pack shows anything."""
    states: torch.Tensor | None = None
    """[rows of the pack, numbers] what simulators measured, of models that read it."""
    action_places: torch.Tensor | None = None
    """[action tokens] those of the pack that are placeholders."""

    @property
    def inputs(self) -> dict[str, Any]:
        """What a model is called with."""
        tokens = {"input_ids": self.token_ids} if self.arrived is None else {"inputs_embeds": self.arrived}
        shown: dict[str, Any] = {} if self.pictures is None else {"pictures": self.pictures}
        more = {"states": self.states, "action_places": self.action_places}
        shown |= {name: tensor for name, tensor in more.items() if tensor is not None}
        return {**tokens, "position_ids": self.positions, "use_cache": False, "attention_layout": self.layout, **shown}

    @staticmethod
    def build(rows: PackedRows, device: torch.device, sharing: Sharing | None = None) -> MicroBatch:
        """sharing: the ranks that share one pack, all of which build the same rows."""
        return on_device(_on_host(rows, device) if sharing is None else _own_part(rows, device, sharing), device)

    @staticmethod
    def of(
        batch: Batch,
        rows: Indices,
        device: torch.device,
        sharing: Sharing | None = None,
        *,
        with_routes: bool = False,
        reader: PictureReader | None = None,
        decision: OneForward | None = None,
        num_state_values: int = 0,
    ) -> MicroBatch:
        """From some rows of a batch that has `prompt_ids` and `response_ids`, and routes where they are to be followed.
        reader: of a model that sees; decision: of one that computes all tokens of a response at once, and how many
        numbers of the state it reads. Raises BadData for what does not belong to these tokens."""
        prompts, responses = batch.column_of("prompt_ids", rows), batch.column_of("response_ids", rows)
        if decision is not None:
            states = _states(batch, rows, num_state_values) if num_state_values else None
            shown = None if reader is None else reader.row_pictures(batch, rows)
            return MicroBatch.build(pack_decisions(prompts, responses, decision, shown, states), device)
        routes = _routes(batch, rows, prompts, responses) if with_routes else None
        pictures = None if reader is None else reader.row_pictures(batch, rows)
        return MicroBatch.build(pack(prompts, responses, routes, pictures), device, sharing)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """[responses] on every rank that shares the tokens, from those of its own."""
        return values if self.places is None else self.places.whole(values)


def _own_part(rows: PackedRows, device: torch.device, sharing: Sharing) -> MicroBatch:
    """What one of the ranks that share a pack has of it."""
    split = SplitTokens(sharing, len(rows.token_ids))
    mine, predicts, places = split.own_places(rows.predicts)
    own = replace(
        rows,
        token_ids=split.own(rows.token_ids),
        positions=split.of_tensor_group(rows.positions),
        predicts=predicts,
        targets=rows.targets[mine],
        routes=None if rows.routes is None else split.own(rows.routes),
        features=None if rows.features is None else split.own(rows.features),
    )
    return replace(_on_host(own, device, _shared_layout(rows, split, device)), places=places)


def _states(batch: Batch, rows: Indices, num_values: int) -> Column:
    if STATE not in batch:
        raise BadData(f"the model reads a state of {num_values} numbers, and the batch has no column {STATE!r}")
    states = batch.column_of(STATE, rows)
    wrong = np.flatnonzero((states.lengths != num_values) & (batch.column_of("response_ids", rows).lengths > 0))
    if len(wrong):
        raise BadData(
            f"row {row_number(batch.row_ids[rows[wrong[0]]])}: its state has {states.lengths[wrong[0]]} numbers, and "
            f"the model reads {num_values} (state_size in its config.json)"
        )
    return states


def _routes(batch: Batch, rows: Indices, prompts: Column, responses: Column) -> tuple[Column, Column]:
    of_prompts, of_responses = (batch.column_of(name, rows) for name in ROUTES)
    for name, result, tokens in zip(ROUTES, (of_prompts, of_responses), (prompts, responses), strict=True):
        if not result.is_ragged or not result.has_rows_like(tokens):
            raise BadData(
                f"column {name!r} does not have one value per token of its rows, and training.routerReplay: Rollout "
                "takes routes from it; a stage that changes prompts or responses must change their routes, too"
            )
    return of_prompts, of_responses


def _shared_layout(rows: PackedRows, split: SplitTokens, device: torch.device) -> AttentionLayout:
    num_tokens, sharing = len(rows.token_ids), split.sharing
    if sharing.ring is not None:
        return RingLayout.build(rows, num_tokens + split.num_pads, sharing.ring)
    # pads are a row of their own, which no other attends to
    pads = np.arange(num_tokens, num_tokens + split.num_pads)
    lengths = np.concatenate([rows.sequence_lengths, [len(pads)]]) if len(pads) else rows.sequence_lengths
    padded = replace(rows, sequences=np.concatenate([rows.sequences, pads]), sequence_lengths=lengths)
    whole = _layout(padded, num_tokens + split.num_pads, device)
    return whole if sharing.heads is None else SplitHeads(whole, sharing.heads)


def _layout(rows: PackedRows, num_tokens: int, device: torch.device) -> PackedLayout:
    return PackedLayout.build(rows.sequences, rows.sequence_lengths, num_tokens, device)


def _layout_of(rows: PackedRows, device: torch.device) -> AttentionLayout:
    if rows.both_ways is None:
        return _layout(rows, len(rows.token_ids), device)
    return BothWaysLayout.build(rows.sequences, rows.sequence_lengths, rows.both_ways, len(rows.token_ids))


def _on_host(rows: PackedRows, device: torch.device, layout: AttentionLayout | None = None) -> MicroBatch:
    """In host memory, as `device` will compute it."""
    positions = torch.from_numpy(rows.positions)
    return MicroBatch(
        torch.from_numpy(rows.token_ids)[None],
        positions[None] if positions.ndim == 1 else positions.T[:, None],
        layout or _layout_of(rows, device),
        torch.from_numpy(rows.predicts),
        torch.from_numpy(rows.targets),
        torch.from_numpy(rows.row),
        rows.num_rows,
        routes=None if rows.routes is None else torch.from_numpy(rows.routes),
        pictures=None if rows.features is None else picture_tensors(rows.pictures, rows.features),
        states=None if rows.states is None else torch.from_numpy(rows.states),
        action_places=None if rows.action_places is None else torch.from_numpy(rows.action_places),
    )


def response_last_layer(model: torch.nn.Module, rows: MicroBatch) -> LastLayer:
    """What a causal LM makes the logits of this rank's response tokens of."""
    result: LastLayer = model(**rows.inputs, last_layer_at=rows.predicts)
    return result


def response_log_probs(
    model: torch.nn.Module,
    rows: MicroBatch,
    temperature: float,
    *,
    entropy: EntropyUse = "None",
    reference: LastLayer | None = None,
) -> LinearLogProbs:
    """Log-probs of all response tokens, and what else is asked of their distributions; logits never exist for all
    of them."""
    wanted = Wanted(rows.predicts, rows.targets, temperature, entropy, reference)
    own: LinearLogProbs = model(**rows.inputs, wanted=wanted)
    return LinearLogProbs(
        rows.whole(own.log_probs),
        None if own.entropy is None else rows.whole(own.entropy),
        None if own.full_kl is None else rows.whole(own.full_kl),
    )


def response_columns(
    batch: Batch, names: tuple[str, ...], rows: np.ndarray, like: torch.Tensor, mask: str | None = None
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Columns of some rows as tensors, ragged ones packed, on the device of `like`, and floats in its dtype; and at
    which response tokens the column `mask`, one of them, is not 0: int64 [actions], of all where there is no mask."""
    lengths = batch["response_ids"].lengths[rows]
    on_host = {name: batch.column_of(name, rows) for name in names}
    # found here: how many there are is a size, for which the host would wait
    at = np.arange(lengths.sum()) if mask is None else np.flatnonzero(on_host[mask].values)
    tensors = [_as_tensor(name, column, lengths) for name, column in on_host.items()]
    *columns, actions = on_device((*tensors, torch.from_numpy(at)), like.device)
    return {
        name: column.to(like.dtype) if column.is_floating_point() else column
        for name, column in zip(names, columns, strict=True)
    }, actions


def _as_tensor(name: str, column: Column, response_lengths: np.ndarray) -> torch.Tensor:
    if column.is_ragged and name != "prompt_ids" and not np.array_equal(column.lengths, response_lengths):
        raise BadData(
            f"column {name!r} does not have one value per response token; a stage that writes a per-token column must "
            "keep the lengths of response_ids"
        )
    values = column.values.view(np.uint16) if column.dtype == "bfloat16" else column.values
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if column.dtype == "bfloat16" else tensor
