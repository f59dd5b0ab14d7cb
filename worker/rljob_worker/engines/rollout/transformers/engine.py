"""`TransformersRollout`: sampling with nothing but transformers, as fast as its modules allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Event

import torch

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_worker.batch import Indices
from rljob_worker.devices.memory import free_memory, give_back
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.cache_bytes import CacheRoom, cache_bytes_per_token
from rljob_worker.engines.rollout.limits import (
    NO_REQUEST,
    Limits,
    require_holdable,
    require_possible,
    require_rows,
)
from rljob_worker.engines.rollout.protocol import Depth
from rljob_worker.engines.rollout.requests import EndedRequests, Load, PartialResponses, Requests
from rljob_worker.engines.rollout.shown_requests import require_pictures
from rljob_worker.engines.rollout.stop_strings import StopTexts
from rljob_worker.engines.rollout.transformers.decoding import Decoding
from rljob_worker.engines.rollout.transformers.policy_weights import PolicyWeights
from rljob_worker.engines.rollout.transformers.request import NO_ROUTES, DecodingRequest, requests_of
from rljob_worker.engines.rollout.transformers.static_steps import StaticSteps, Step
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.engines.router import routers, routing_of
from rljob_worker.errors import InvalidJob


class TransformersRollout:
    """A RolloutEngine over a causal LM that `models.load_policy` made.

    vocabulary: of the model's tokenizer; only requests with stop texts need it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        end_token_ids: tuple[int, ...],
        memory_fraction: float = 0.6,
        free_bytes: Callable[[], int] | None = None,
        vocabulary: Vocabulary | None = None,
        *,
        owns_weights: bool = False,
        records_routes: bool = False,
        record: Callable[[Step], Step] | None = None,
        reader: PictureReader | None = None,
        frozen: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """free_bytes: what is free of the device's memory, of which the cache may take the fraction. owns_weights:
        nobody else computes with the model. records_routes: of a model with experts; InvalidJob for any other.
        record: makes decoding steps of one shape into something faster, such as `CUDAGraphs`; InvalidJob for a model
        with experts, of which each step computes others. reader: of the pictures that prompts show, of a model that
        sees. frozen: of which parameters new weights need not come, since nobody trains them."""
        self.model = model.eval().to(device)
        self._weights = PolicyWeights(self.model, owned=owns_weights, frozen=frozen)
        self._free_bytes = free_bytes or partial(free_memory, device)
        self._room = CacheRoom(0, memory_fraction, cache_bytes_per_token(model.config, model.dtype.itemsize))
        routing = routing_of(self.model) if records_routes else None
        static = None if record is None else static_steps(self.model, record)
        self._no_routes = NO_ROUTES if routing is None else routing.none
        self._decoding = Decoding(self.model, end_token_ids, routing, static, reader)
        self._reader = reader
        self._stops = StopTexts(vocabulary)
        self._limits = Limits(
            vocabulary_size=model.config.get_text_config().vocab_size,
            longest_row=getattr(model.config.get_text_config(), "max_position_embeddings", None),
            temperatures=ROLLOUT_ENGINES["Transformers"].temperatures,
            records_routes=records_routes,
            sees=reader is not None,
            gives_top_log_probs=True,
        )
        self._device = device
        self._is_called = Event()
        """Whether somebody waits for `advance` to return."""

    def submit(self, requests: Requests) -> None:
        require_possible(requests, self._limits, self._decoding.row_ids)
        if len(requests):
            result = requests_of(requests, self._stops.of_requests(requests), self._no_routes)
            if self._reader is not None:
                require_pictures(self._reader, requests)
            longest = requests.prompts.lengths[requests.prompt_of] + requests.max_tokens
            self._require_room(result[int(longest.argmax())])
            self._decoding.submit(result)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        self._weights.require_whole()
        assert most_steps is None or most_steps > 0, "to advance is to take a step"
        with torch.inference_mode():
            for _ in count() if most_steps is None else range(most_steps):
                if self._decoding.num_ended or self._decoding.is_idle:
                    break
                self._decoding.advance(self.version)
                if self._is_called.is_set():
                    break
        self._is_called.clear()
        return self._decoding.take_ended()

    def wake(self) -> None:
        self._is_called.set()

    def peek(self, row_ids: Indices) -> PartialResponses:
        require_rows(row_ids, self._decoding.unfinished, NO_REQUEST)
        return self._decoding.peek(row_ids)

    def abort(self, row_ids: Indices) -> EndedRequests:
        with torch.inference_mode():
            self._decoding.abort(row_ids)
        return self._decoding.take_ended()

    def pause(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._decoding.unfinished, NO_REQUEST)
        with torch.inference_mode():
            self._decoding.pause(row_ids)

    def resume(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._decoding.unfinished, NO_REQUEST)
        self._decoding.resume(row_ids)

    def hold(self, row_ids: Indices) -> None:
        require_holdable(row_ids, self._decoding.given, self._decoding.most_held)
        with torch.inference_mode():
            self._decoding.hold(row_ids)

    def release(self, row_ids: Indices) -> None:
        self._decoding.release(row_ids.tolist())

    @property
    def load(self) -> Load:
        return self._decoding.load

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool = False) -> None:
        self._decoding.put_back()
        self._decoding.release()
        self._weights.load(weights, version)

    @property
    def version(self) -> int:
        return self._weights.version

    def held_bytes(self, depth: Depth) -> int:
        return self._decoding.cache_bytes + (self._weights.nbytes if depth == "Weights" else 0)

    def sleep(self, depth: Depth) -> None:
        assert self._decoding.is_idle, "requests that run need what was computed for them"
        self._decoding.release()
        self._decoding.drop_cache()
        if depth == "Weights":
            self._weights.drop()
        give_back(self._device)

    def close(self) -> None:
        """Nothing was started."""

    def _require_room(self, longest: DecodingRequest) -> None:
        """For the longest of new requests. What is free is looked at when nothing runs."""
        room = self._room
        if self._decoding.is_idle:
            room = replace(room, free_bytes=self._free_bytes() + self._decoding.cache_bytes)
        room.require_row(longest.row_id, longest.longest)
        self._room, self._decoding.room = room, room.tokens


def static_steps(model: torch.nn.Module, record: Callable[[Step], Step]) -> StaticSteps:
    """Raises InvalidJob for a model with experts."""
    if routers(model):
        raise InvalidJob(
            "rollout.engineOptions.enforceEager: false: steps of a model with experts are not recorded, since each "
            "computes others; leave it out"
        )
    return StaticSteps(model, record)
