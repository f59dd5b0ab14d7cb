"""`VLLMRollout`: requests to vLLM's in-process engine, one step after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

import torch
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.llm_engine import LLMEngine

from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.batch import Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.limits import (
    NO_REQUEST,
    Limits,
    require_holdable,
    require_possible,
    require_rows,
)
from rljob_worker.engines.rollout.protocol import Depth
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses, Requests
from rljob_worker.engines.rollout.responses import Response, ended_table, partial_responses, responses_of
from rljob_worker.engines.rollout.shown_requests import require_pictures
from rljob_worker.engines.rollout.stop_strings import StopTexts
from rljob_worker.engines.rollout.vllm.cache import cache_bytes, in_use, most_tokens, zero_cache
from rljob_worker.engines.rollout.vllm.copies import outputs_digest
from rljob_worker.engines.rollout.vllm.library_requests import catch_up, inputs_of, params_of, require_finite, take
from rljob_worker.engines.rollout.vllm.weights.reloaded_weights import ReloadedWeights
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import EngineBroken, InvalidJob

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

WHOLE = WeightSlices()
"""For a rank that is a copy of its own."""
_CLOSED = "it is closed"

_SLEEP_LEVELS: dict[Depth, int] = {"Cache": 1, "Weights": 2}
"""Sleep levels of vLLM: 1 keeps the weights in host memory, 2 drops them too."""
_WEIGHTS, _CACHE = "weights", "kv_cache"
"""What vLLM calls the parts that wake apart from each other."""


class VLLMRollout:
    """A RolloutEngine (see `protocol`) over an engine that `starting` built, whose weights mean nothing yet.

    parameters: names and shapes of the policy, tied names sharing a tensor; their values are never read. mesh: with the
    ranks over which the engine is spread, each of which has one of these. reader: of the pictures that prompts show, of
    a model that sees. frozen: of which parameters new weights need not come, since nobody trains them. slices: how the
    ranks share the tensors of a checkpoint; of each this one is given what it keeps.
    """

    def __init__(
        self,
        engine: LLMEngine,
        parameters: Mapping[str, torch.Tensor],
        end_token_ids: tuple[int, ...],
        limits: Limits,
        vocabulary: Vocabulary | None = None,
        *,
        mesh: ProcessMesh,
        can_sleep: bool,
        reader: PictureReader | None = None,
        frozen: Callable[[str], bool] = lambda name: False,
        slices: WeightSlices = WHOLE,
    ) -> None:
        self.weights = ReloadedWeights(parameters, slices, mesh.rank % slices.tensor, frozen)
        self._reader = reader
        self._engine = engine
        self._mesh = mesh
        self._end_token_ids = end_token_ids
        self._limits, self._stops = limits, StopTexts(vocabulary)
        self._can_sleep = can_sleep
        self._running: dict[str, Response] = {}
        """By the name of the request: of those that go on, and of those that are spoilt."""
        self._paused: dict[int, Response] = {}
        """By row id."""
        self._ended: list[tuple[Response, Ending]] = []
        """Not given back yet."""
        self._has_spoilt_cache = False
        self._version = 0
        self._fault: str | None = "it has no weights yet"
        self._asleep: set[str] = set()
        self._given: dict[int, int] = {}
        """Tokens of the rows that ended with the last call, by row id."""
        self._is_called = Event()
        """Whether somebody waits for `advance` to return."""

    @property
    def version(self) -> int:
        """The policy version of the last `load_weights`."""
        return self._version

    def submit(self, requests: Requests) -> None:
        there = [*self._all_unfinished.values(), *(response for response, _ in self._ended)]
        require_possible(requests, self._limits, {response.row_id for response in there})
        if self._reader is not None:
            require_pictures(self._reader, requests)
        if len(requests):
            self._add(responses_of(requests, self._stops.of_requests(requests)))

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        assert self._fault is None, f"the engine cannot generate: {self._fault}"
        assert most_steps is None or most_steps > 0, "to advance is to take a step"
        self._wake(_WEIGHTS, _CACHE)
        for _ in count() if most_steps is None else range(most_steps):
            if self._ended:
                break
            require_finite(self._running.values())
            if not self._running:
                break
            if self._has_spoilt_cache:
                self._clear_cache()
            outputs, is_called = self._step()
            for output in outputs:
                self._go_on(output)
            if is_called:
                break
        self._is_called.clear()
        return self._taken()

    def wake(self) -> None:
        self._is_called.set()

    def peek(self, row_ids: Indices) -> PartialResponses:
        known = self._all_unfinished
        require_rows(row_ids, known, NO_REQUEST)
        result = [known[row] for row in row_ids.tolist()]
        for response in result:
            catch_up(response, self._engine, self._version)
        return partial_responses(result)

    def abort(self, row_ids: Indices) -> EndedRequests:
        known = self._all_unfinished
        aborted = [known[row] for row in dict.fromkeys(row_ids.tolist()) if row in known]
        self._take_out(aborted)
        for response in aborted:
            self._paused.pop(response.row_id, None)
        self._ended += [(response, Ending.ABORTED) for response in aborted]
        return self._taken()

    def pause(self, row_ids: Indices) -> None:
        known = self._all_unfinished
        require_rows(row_ids, known, NO_REQUEST)
        paused = [known[row] for row in dict.fromkeys(row_ids.tolist())]
        self._take_out(paused)
        self._paused |= {response.row_id: response for response in paused}

    def resume(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._all_unfinished, NO_REQUEST)
        resumed = [self._paused.pop(row) for row in dict.fromkeys(row_ids.tolist()) if row in self._paused]
        for response in resumed:
            response.spoilt_by = None
        self._add(resumed)

    def hold(self, row_ids: Indices) -> None:
        """The prefix cache does: what is in no use stays, and the longest unused goes first."""
        require_holdable(row_ids, self._given, most_tokens(self._engine))

    def release(self, row_ids: Indices) -> None:
        """Nothing is kept from others."""

    @property
    def load(self) -> Load:
        running, free = in_use(self._engine)
        return Load(running, len(self._running) - running, len(self._paused), free)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool = False) -> None:
        """Invalidates the prefix cache. What runs is preempted: its tokens stay, and the cache is filled anew from
        them. A cache that sleeps does so until something is generated."""
        self._wake(_WEIGHTS)
        for response in self._running.values():
            catch_up(response, self._engine, self._version)
        self._fault = f"the policy after version {self._version} has not come whole"
        self.weights.load(self._engine, weights, version, lasting=lasting)
        self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._reader is not None:
            self._engine.reset_mm_cache()
            self._engine.reset_encoder_cache()  # features of the tower before
        self._version, self._fault = version, None

    def held_bytes(self, depth: Depth) -> int:
        """Cache and weights: at either depth both leave the device."""
        if not self._can_sleep:
            return 0
        held = {_CACHE: cache_bytes(self._engine), _WEIGHTS: self.weights.nbytes}
        return sum(num_bytes for part, num_bytes in held.items() if part not in self._asleep)

    def sleep(self, depth: Depth) -> None:
        assert not self._running, "nothing may be running"
        if not self._can_sleep:
            return
        self._engine.sleep(_SLEEP_LEVELS[depth])
        self._asleep = {_WEIGHTS, _CACHE}
        if depth == "Weights":
            self._fault = "its weights were dropped by sleep"

    def close(self) -> None:
        if self._fault != _CLOSED:
            self._engine.model_executor.shutdown()
            self._fault = _CLOSED

    def _wake(self, *parts: str) -> None:
        asleep = [part for part in parts if part in self._asleep]
        if asleep:
            self._engine.wake_up(asleep)
            self._asleep.difference_update(asleep)

    def _step(self) -> tuple[list[RequestOutput], bool]:
        """One more token for what runs, and whether `advance` is to return. The library's own draws, which no request
        uses, are not the trainer's."""
        state = torch.get_rng_state()
        try:
            outputs: list[RequestOutput] = self._engine.step()
        except Exception as error:
            self._fault = f"it broke with {type(error).__name__}"
            raise EngineBroken(f"vLLM broke while generating: {type(error).__name__}: {error}") from error
        finally:
            torch.set_rng_state(state)
        return outputs, self._agreed(outputs)

    def _agreed(self, outputs: list[RequestOutput]) -> bool:
        """Whether a rank of the copy was called. Ranks that sampled other tokens, or that return after other steps,
        would wait for each other from here on."""
        low, high = self._mesh.range_in_copy(2 * outputs_digest(outputs) + self._is_called.is_set())
        if low // 2 != high // 2:
            self._fault = "its ranks went different ways"
            raise EngineBroken(
                f"ranks of one copy sampled different tokens under policy version {self._version}; the job goes on "
                "from its last checkpoint, and with rollout.parallelism.tensor 1 this cannot be"
            )
        return bool(high % 2)

    @property
    def _all_unfinished(self) -> dict[int, Response]:
        """By row id."""
        return {response.row_id: response for response in self._running.values()} | self._paused

    def _add(self, responses: Sequence[Response]) -> None:
        """Let the library go on with what there is. Raises InvalidJob for a request that it refuses; it then has none
        of them."""
        params = [params_of(response, self._end_token_ids) for response in responses]
        inputs = inputs_of(responses, self._reader)
        added = list[Response]()
        try:
            for response, shown, item in zip(responses, inputs, params, strict=True):
                response.num_before = len(response.tokens)
                response.handle = self._engine.add_request(response.name, shown, item)
                added.append(response)
        except Exception as error:
            self._engine.abort_request([response.name for response in added])
            if not isinstance(error, (ValueError, VLLMValidationError)):
                raise
            row = row_number(responses[len(added)].row_id)
            raise InvalidJob(f"row {row}: vLLM refuses the request: {error}") from error
        for response in added:
            response.is_open = True
            self._running[response.name] = response

    def _take_out(self, responses: Sequence[Response]) -> None:
        """The library goes on with none of these; what it has of them is kept."""
        is_open = [response for response in responses if response.is_open]
        for response in is_open:
            catch_up(response, self._engine, self._version)
            response.is_open = False
        self._engine.abort_request([response.name for response in is_open])
        taken = [self._running.pop(response.name, None) for response in responses]
        self._has_spoilt_cache |= any(item is not None and item.spoilt_by is not None for item in taken)

    def _go_on(self, output: RequestOutput) -> None:
        """A request with what it has more than before; it may have ended with that."""
        response = self._running[output.request_id]
        take(response, output, self._version)
        response.is_open = not output.finished
        ending = response.ending(self._end_token_ids, is_finished=output.finished)
        if ending is not None:
            self._ended.append((self._running.pop(output.request_id), ending))
        if response.is_open and (ending is not None or response.spoilt_by is not None):
            self._engine.abort_request([output.request_id])
            response.is_open = False

    def _clear_cache(self) -> None:
        """What runs is computed anew."""
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.collective_rpc(zero_cache)
        self._has_spoilt_cache = False

    def _taken(self) -> EndedRequests:
        result, self._ended = self._ended, []
        self._given = {item.row_id: len(item.prompt) + len(item.tokens) for item, _ in result}
        return ended_table(result)
