"""`OneForwardRollout`: sampling of models that compute all tokens of a response in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from threading import Event

import numpy as np
import torch

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_worker.batch import Column, Indices
from rljob_worker.devices.memory import give_back
from rljob_worker.engines.decision_packing import OneForward, pack_decisions
from rljob_worker.engines.micro_batch import MicroBatch, response_last_layer
from rljob_worker.engines.models.actions import num_state_values, one_forward_of
from rljob_worker.engines.packing import micro_batches
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.prompt_pictures import RowPictures, ShownTokens
from rljob_worker.engines.rollout.limits import NO_REQUEST, Limits, require_holdable, require_possible, require_rows
from rljob_worker.engines.rollout.protocol import Depth
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses, Requests
from rljob_worker.engines.rollout.sampling import draw_numbers, sample_each
from rljob_worker.engines.rollout.shown_requests import require_pictures
from rljob_worker.engines.rollout.transformers.policy_weights import PolicyWeights
from rljob_worker.engines.rollout.transformers.request import (
    NO_ROUTES,
    DecodingRequest,
    Drawn,
    ended,
    partial_responses,
    requests_of,
)
from rljob_worker.engines.rollout.transformers.rows import require_finite, sampling_kinds, streams_of, way_of
from rljob_worker.engines.rollout.transformers.waiting import WaitingRequests

FORWARD_TOKENS = 8192
"""Tokens of one forward pass, prompts included."""


class OneForwardRollout:
    """A RolloutEngine over a model whose config has `one_forward`. A step is a forward pass of requests that wait, all
    of which end with it; nothing is cached, so that `hold` keeps nothing and rows of several turns are computed anew.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        *,
        owns_weights: bool = False,
        reader: PictureReader | None = None,
        frozen: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """owns_weights, reader, frozen: as in `TransformersRollout`."""
        decision = one_forward_of(model.config)
        assert decision is not None, "the model computes its tokens one after another"
        self.model = model.eval().to(device)
        self._decision: OneForward = decision
        self._weights = PolicyWeights(self.model, owned=owns_weights, frozen=frozen)
        self._device, self._reader = device, reader
        self._waiting = WaitingRequests()
        self._paused: dict[int, DecodingRequest] = {}
        self._ended: list[tuple[DecodingRequest, Ending]] = []
        self._given: dict[int, int] = {}
        """Tokens of what was given last, by row id."""
        text = model.config.get_text_config()
        self._limits = Limits(
            vocabulary_size=text.vocab_size,
            longest_row=getattr(text, "max_position_embeddings", None),
            temperatures=ROLLOUT_ENGINES["Transformers"].temperatures,
            sees=reader is not None,
            num_state_values=num_state_values(model.config),
            num_decision_tokens=decision.num_tokens,
        )
        self._is_called = Event()
        """Whether somebody waits for `advance` to return."""

    def submit(self, requests: Requests) -> None:
        require_possible(requests, self._limits, self._unfinished | {item.row_id for item, _ in self._ended})
        if len(requests):
            result = requests_of(requests, [None] * len(requests.samplings))
            if self._reader is not None:
                require_pictures(self._reader, requests)
            self._waiting.append(result)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        self._weights.require_whole()
        assert most_steps is None or most_steps > 0, "to advance is to take a step"
        with torch.inference_mode():
            for _ in count() if most_steps is None else range(most_steps):
                if self._ended or not len(self._waiting):
                    break
                self._step()
                if self._is_called.is_set():
                    break
        self._is_called.clear()
        return self._take_ended()

    def wake(self) -> None:
        self._is_called.set()

    def peek(self, row_ids: Indices) -> PartialResponses:
        require_rows(row_ids, self._unfinished, NO_REQUEST)
        there = {item.row_id: item for item in (*self._waiting, *self._paused.values())}
        return partial_responses([there[row] for row in row_ids.tolist()])

    def abort(self, row_ids: Indices) -> EndedRequests:
        rows = set(row_ids.tolist())
        taken = [*self._waiting.take(rows), *(self._paused.pop(row) for row in rows & set(self._paused))]
        self._ended += [(item, Ending.ABORTED) for item in taken]
        return self._take_ended()

    def pause(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._unfinished, NO_REQUEST)
        self._paused |= {item.row_id: item for item in self._waiting.take(set(row_ids.tolist()))}

    def resume(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._unfinished, NO_REQUEST)
        self._waiting.prepend([self._paused.pop(row) for row in row_ids.tolist() if row in self._paused])

    def hold(self, row_ids: Indices) -> None:
        require_holdable(row_ids, self._given, sum(self._given.values()))

    def release(self, row_ids: Indices) -> None:
        """Nothing is held."""

    @property
    def load(self) -> Load:
        return Load(running=0, waiting=len(self._waiting), paused=len(self._paused), free_tokens=FORWARD_TOKENS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool = False) -> None:
        self._weights.load(weights, version)

    @property
    def version(self) -> int:
        return self._weights.version

    def held_bytes(self, depth: Depth) -> int:
        return self._weights.nbytes if depth == "Weights" else 0

    def sleep(self, depth: Depth) -> None:
        assert not len(self._waiting), "requests that wait need the weights"
        if depth == "Weights":
            self._weights.drop()
        give_back(self._device)

    def close(self) -> None:
        """Nothing was started."""

    @property
    def _unfinished(self) -> set[int]:
        return {*(item.row_id for item in self._waiting), *self._paused}

    def _take_ended(self) -> EndedRequests:
        result, self._ended = self._ended, []
        self._given = {item.row_id: item.num_tokens for item, _ in result}
        return ended(result)

    def _step(self) -> None:
        """All tokens of the first requests that wait. An error leaves them waiting."""
        waiting = list(self._waiting)
        lengths = np.array([len(item.prompt) + self._decision.num_tokens for item in waiting], np.int64)
        requests = waiting[: len(micro_batches(lengths, FORWARD_TOKENS)[0])]
        tokens, log_probs = self._draw(requests)
        self._waiting.pop(len(requests))
        for at, item in enumerate(requests):
            self._draw_all(item, tokens[at], log_probs[at])
            self._ended.append((item, Ending.END_TOKEN))

    def _draw(self, requests: Sequence[DecodingRequest]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probs [requests, tokens of a decision]."""
        num_tokens, num_rows = self._decision.num_tokens, len(requests)
        rows = pack_decisions(
            Column.ragged([item.prompt for item in requests]),
            Column.from_lengths(np.zeros(num_rows * num_tokens, np.int64), np.full(num_rows, num_tokens)),
            self._decision,
            self._pictures(requests),
            self._states(requests),
        )
        packed = MicroBatch.build(rows, self._device)
        last = response_last_layer(self.model, packed)
        firsts, sampling_of = sampling_kinds(requests)
        ways = [way_of(item.sampling) for item in firsts]
        turns, first = (np.array([getattr(item, name) for item in requests]) for name in ("turn", "first_draw"))
        places = np.tile(np.arange(num_tokens), num_rows)
        row_of = np.repeat(np.arange(num_rows), num_tokens)
        draws = draw_numbers(turns[row_of], first[row_of] + places)
        tokens, log_probs = sample_each(
            last.logits(slice(None)), ways, sampling_of[row_of], streams_of(requests)[row_of], draws
        )
        result = log_probs.float().cpu().numpy()
        row_ids = np.array([item.row_id for item in requests], np.int64)
        require_finite(row_ids[row_of], result, places, self.version)
        words = tokens.cpu().numpy() + last.first_word
        return words.reshape(num_rows, num_tokens), result.reshape(num_rows, num_tokens)

    def _draw_all(self, item: DecodingRequest, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Give a request its whole response, behind the tokens that it brought."""
        own, has = slice(len(item.drawn), None), item.drawn
        versions = np.full(len(tokens[own]), self.version, np.int64)
        item.drawn = Drawn(
            np.concatenate([has.tokens, tokens[own]]),
            np.concatenate([has.log_probs, log_probs[own]]),
            np.concatenate([has.versions, versions]),
            NO_ROUTES,
        )

    def _pictures(self, requests: Sequence[DecodingRequest]) -> RowPictures | None:
        if self._reader is None:
            return None
        reader = self._reader

        def of_row(row: int) -> ShownTokens:
            item = requests[row]
            return reader.prompt_pictures(item.prompt, item.pictures, item.row_id)

        return RowPictures(np.arange(len(requests)), of_row)

    def _states(self, requests: Sequence[DecodingRequest]) -> Column | None:
        if not self._limits.num_state_values:
            return None
        return Column.ragged([[] if item.state is None else item.state for item in requests], "float32")
