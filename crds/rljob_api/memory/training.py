"""Memory of an optimizer step: gradients, besides what passes through the model.

With P parameters over R ranks of a replica and b bytes of a stored number:

    gradients    P b / R; whole, P b, where they add up before they are reduced (up to HELD_BYTES); else also two units
                 on their way, when what the layers of one kept is gone
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.memory.activations import (
    activations,
    last_gradient,
    layer_on_its_way_back,
    logits_bytes,
    one_layer,
    scores_bytes,
)
from rljob_api.memory.parallel_layout import ParallelLayout


@dataclass(frozen=True, slots=True)
class UpdateMemory:
    """What one optimizer step of a model takes at most, in bytes."""

    gradients: int
    activations: int
    logits: int
    peak: int
    """Beyond shards, gathered weights and what is kept of the optimizer."""
    before: int = 0
    """What is there of the gradients when the forward pass of the last micro-batch begins."""


def update_memory(
    layout: ParallelLayout,
    tokens: int,
    responses: int,
    micro_batches: int,
    *,
    recompute: bool,
    attended: int = 0,
    longest: int = 0,
    on_their_way: int = 1,
) -> UpdateMemory:
    """tokens: of a micro-batch, of which `responses` are predicted; none by a critic. attended: of its rows, where that
    is more, as rows that share a prompt each attend over it; longest: of one row. on_their_way: micro-batches between
    their forward and their backward pass, if there are as many."""
    gradients = _Gradients.of(layout, several=micro_batches > 1)
    there = min(on_their_way, micro_batches)
    kept = activations(layout, tokens, recompute=recompute, attended=attended, micro_batches=there)
    logits = logits_bytes(layout, responses, trained=True)
    scores = scores_bytes(layout, max(tokens, attended), longest, trained=True)
    layer = layer_on_its_way_back(layout, tokens, attended, scores, recompute=recompute)
    last = last_gradient(layout) * (responses > 0)
    gone = 0 if recompute else gradients.layers_on_their_way * one_layer(layout, tokens, attended)
    peaks = (
        gradients.before + kept + logits,
        gradients.before + kept + last + layer,
        gradients.before + gradients.on_their_way + kept - min(gone, kept) + last + layer,
        gradients.all + max(one_layer(layout, tokens) // 2, scores),
        gradients.all + layout.stepped,
    )
    return UpdateMemory(gradients.all, kept + layer, logits, max(peaks), gradients.before)


@dataclass(frozen=True, slots=True)
class _Gradients:
    """Bytes of those of one model."""

    before: int
    """When the last micro-batch comes back from its loss."""
    on_their_way: int
    """Besides, of two units of layers: one is computed while one is reduced."""
    all: int
    layers_on_their_way: int
    """Layers of the first of the two units on their way, which has come back altogether when the second is there."""

    @staticmethod
    def of(layout: ParallelLayout, *, several: bool) -> _Gradients:
        per_parameter = layout.trained / layout.shape.parameters
        if layout.is_whole or (layout.is_held and several):
            whole = int(per_parameter * layout.parameters_here)
            return _Gradients(whole * several, 0, whole, 0)
        own = 0 if layout.offload.parameters else layout.own_trained
        on_their_way = int(2 * (layout.unit or layout.root) * per_parameter)
        return _Gradients(own * several, on_their_way, own + on_their_way, layout.layers_of_unit)
