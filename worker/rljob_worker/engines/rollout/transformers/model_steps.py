"""Forward passes of generation: packed prompts into the cache, and one more token of every row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rljob_worker.batch import Column, Indices
from rljob_worker.devices.copies import on_device
from rljob_worker.engines.attention.varlen import AttentionLayout, PackedLayout
from rljob_worker.engines.models.vision import picture_tensors
from rljob_worker.engines.prompt_pictures import ShownTokens, feature_places, rope_of_sequences
from rljob_worker.engines.rollout.transformers.cached_rows import CachedPrefix, ContinuedPrompts
from rljob_worker.engines.rollout.transformers.kv_cache import DecodeCache, PromptCapture
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES
from rljob_worker.engines.rollout.transformers.static_steps import StaticSteps
from rljob_worker.engines.router import Routing


class ModelSteps:
    """A model that generates. Whatever it returns are next-token logits, and the routes of all tokens it computed,
    where these are recorded."""

    def __init__(self, model: torch.nn.Module, routing: Routing | None, static_steps: StaticSteps | None) -> None:
        """routing: of the model, where its routes are recorded. static_steps: of the model, where its steps are; they
        record no routes."""
        assert routing is None or static_steps is None, "routes are not recorded in static steps"
        self._model = model
        self._routing = routing
        self._static = static_steps
        self._device: torch.device = next(model.parameters()).device

    def new_cache(self) -> DecodeCache:
        """A cache without rows, in place of one that no step reads any more."""
        if self._static is not None:
            self._static.forget()
        return DecodeCache(zeroed=self._static is not None)

    def prefill(
        self,
        cache: DecodeCache,
        sequences: Column,
        sequence_of: Indices,
        begun: Sequence[CachedPrefix],
        shown: Sequence[ShownTokens] | None = None,
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Forward what is new of packed sequences and add a row to the cache for each of `sequence_of`; logits
        [rows, vocabulary]. begun: the cached beginning of each sequence. shown: what the prompt of each shows, of a
        model that sees."""
        assert sequences.offsets is not None
        lengths, starts = sequences.lengths, sequences.offsets[:-1]
        num_known = np.array([item.num_tokens for item in begun], np.int64)
        positions = np.arange(len(sequences.values)) - np.repeat(starts, lengths)
        captured, layout = self._layout(begun, lengths - num_known)
        is_new = positions >= np.repeat(num_known, lengths)
        pictures = {}
        if shown is not None:
            places = [start + item.places for start, item in zip(starts.tolist(), shown, strict=True)]
            features, different = feature_places(shown, places, len(positions))
            positions = rope_of_sequences(positions, shown, starts.tolist(), lengths.tolist())
            if features[is_new].any():
                pictures["pictures"] = on_device(picture_tensors(different, features[is_new]), self._device)
        logits, routes = self._forward(
            input_ids=torch.from_numpy(sequences.values[is_new]).to(self._device)[None],
            position_ids=torch.from_numpy(positions[..., is_new]).to(self._device)[..., None, :],
            **pictures,
            past_key_values=captured,
            logits_to_keep=torch.from_numpy(np.cumsum(lengths - num_known) - 1).to(self._device),
            attention_layout=layout,
        )
        cache.admit(captured, sequence_of, starts, lengths)
        return logits[0].index_select(0, torch.from_numpy(sequence_of).to(self._device)), routes

    def next_logits(
        self, cache: DecodeCache, tokens: torch.Tensor, finished: np.ndarray, rope_shifts: Indices | int = 0
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Logits [rows, vocabulary] after `tokens` [rows], the last token of each. finished: bool [rows], of those
        whose logits nobody reads. rope_shifts: [rows] from their places to their positions."""
        # a finished row goes nowhere: it must not run out of the model's positions
        positions = np.where(finished, 0, cache.lengths + rope_shifts)
        if self._static is not None:
            return self._static.step(cache, tokens, positions), NO_ROUTES
        logits, routes = self._forward(
            input_ids=tokens[:, None],
            position_ids=torch.from_numpy(positions).to(self._device)[:, None],
            past_key_values=cache,
            attention_layout=cache,
        )
        return logits[:, -1], routes

    def _layout(self, begun: Sequence[CachedPrefix], num_new: Indices) -> tuple[PromptCapture, AttentionLayout]:
        """What captures packed sequences, and how their new tokens attend."""
        if any(item.num_tokens for item in begun):
            continued = ContinuedPrompts(begun, num_new)
            return continued, continued
        tokens = np.arange(int(num_new.sum()))
        layout = PackedLayout.build(tokens, num_new, len(tokens), self._device)
        return PromptCapture(), on_device(layout, self._device)

    def _forward(self, **inputs: object) -> tuple[torch.Tensor, np.ndarray]:
        """Logits, and the routes of all tokens where they are recorded."""
        if self._routing is None:
            return self._model(**inputs, use_cache=True).logits, NO_ROUTES
        with self._routing.recording() as recording:
            logits = self._model(**inputs, use_cache=True).logits
        return logits, recording.routes()
