"""`HTTPRollout`: requests to a server that generates from tokens, as calls of so many tokens each.

A response is asked for in parts: a call has what there is of it as its prompt, which the server's prefix cache has.
What runs while weights change, is paused or aborted is cancelled, and loses what its call has sampled by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.arriving_policy import whole_policy
from rljob_worker.engines.rollout.http.connection import Answer, ServerConnection
from rljob_worker.engines.rollout.http.routes import ContinuationCall, Routes, SampledTokens, UnexpectedAnswer
from rljob_worker.engines.rollout.http.weight_folder import WeightFolder
from rljob_worker.engines.rollout.limits import NO_REQUEST, Limits, require_holdable, require_possible, require_rows
from rljob_worker.engines.rollout.protocol import Depth
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses, Requests
from rljob_worker.engines.rollout.responses import Response, ended_table, partial_responses, responses_of
from rljob_worker.engines.rollout.sampling import draw_numbers
from rljob_worker.engines.rollout.stop_strings import StopTexts
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import BadData, EngineBroken, InvalidJob, RLJobError
from rljob_worker.random_bits import bits_at

ROOM_TOKENS = 1 << 40
"""The room of the server's cache is its own affair."""
_NO_WEIGHTS = "it has no weights yet"


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What is known of the model that the server has."""

    parameters: Mapping[str, torch.Tensor]
    """Names and shapes, tied names sharing a tensor; their values are never read."""
    dtype: torch.dtype
    """The number format of the files of weights."""
    end_token_ids: tuple[int, ...]
    limits: Limits
    vocabulary: Vocabulary | None = None
    """By which stop texts are found."""
    frozen: Callable[[str], bool] = lambda name: False
    """Which parameters new weights need not have, since nobody trains them."""


class HTTPRollout:
    """A RolloutEngine (see `protocol`) over a server that nobody else asks, which generates once it has weights."""

    def __init__(
        self,
        connection: ServerConnection,
        routes: Routes,
        model: RemoteModel,
        folder: WeightFolder,
        tokens_per_call: int,
    ) -> None:
        self._connection, self._routes, self._model, self._folder = connection, routes, model, folder
        self._tokens_per_call = tokens_per_call
        self._stops = StopTexts(model.vocabulary)
        self._running: dict[int, Response] = {}
        """By row id: those that go on, and those that are spoilt."""
        self._paused: dict[int, Response] = {}
        self._called: dict[int, int] = {}
        """The row of each call under way, by the call's number."""
        self._num_calls = 0
        self._ended: list[tuple[Response, Ending]] = []
        """Not given back yet."""
        self._given: dict[int, int] = {}
        """Tokens of the rows that ended with the last call, by row id."""
        self._version = 0
        self._fault: str | None = _NO_WEIGHTS

    @property
    def version(self) -> int:
        return self._version

    @property
    def load(self) -> Load:
        used = sum(len(response.prompt) + len(response.tokens) for response in self._running.values())
        return Load(len(self._running), 0, len(self._paused), ROOM_TOKENS - used)

    def submit(self, requests: Requests) -> None:
        there = {*self._unfinished, *(response.row_id for response, _ in self._ended)}
        require_possible(requests, self._model.limits, there)
        if len(requests):
            responses = responses_of(requests, self._stops.of_requests(requests))
            self._running |= {response.row_id: response for response in responses}

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        """A bound is one of tokens of each row; calls that an earlier `advance` left go on as they were."""
        assert self._fault is None, f"the engine cannot generate: {self._fault}"
        assert most_steps is None or most_steps > 0, "to advance is to take a step"
        bound = 1 if self._connection.is_woken else most_steps
        self._require_finite_unless_ended()
        self._call_all(bound)
        while self._called and not self._ended:
            finished = self._connection.finished()
            for number, answer in finished:
                response = self._taken(number, answer)
                if response is not None and bound is None and not self._ended:
                    self._call(response, None)
            self._require_finite_unless_ended()
            if self._connection.is_woken and bound is None:
                break
        self._connection.sleep_on()
        return self._table()

    def wake(self) -> None:
        self._connection.wake()

    def peek(self, row_ids: Indices) -> PartialResponses:
        known = self._unfinished
        require_rows(row_ids, known, NO_REQUEST)
        return partial_responses([known[row] for row in row_ids.tolist()])

    def abort(self, row_ids: Indices) -> EndedRequests:
        known = self._unfinished
        aborted = [known[row] for row in dict.fromkeys(row_ids.tolist()) if row in known]
        self._cancel(response.row_id for response in aborted)
        for response in aborted:
            self._running.pop(response.row_id, None)
            self._paused.pop(response.row_id, None)
        self._ended += [(response, Ending.ABORTED) for response in aborted]
        return self._table()

    def pause(self, row_ids: Indices) -> None:
        known = self._unfinished
        require_rows(row_ids, known, NO_REQUEST)
        paused = [row for row in dict.fromkeys(row_ids.tolist()) if row in self._running]
        self._cancel(paused)
        self._paused |= {row: self._running.pop(row) for row in paused}

    def resume(self, row_ids: Indices) -> None:
        require_rows(row_ids, self._unfinished, NO_REQUEST)
        for row in dict.fromkeys(row_ids.tolist()):
            if row in self._paused:
                self._running[row] = self._paused.pop(row)
                self._running[row].spoilt_by = None

    def hold(self, row_ids: Indices) -> None:
        """The server's prefix cache does."""
        require_holdable(row_ids, self._given, ROOM_TOKENS)

    def release(self, row_ids: Indices) -> None:
        """Nothing is kept from others."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool = False) -> None:
        """Through a folder that the server reads."""
        self._cancel(list(self._called.values()))
        self._fault = f"the policy after version {self._version} has not come whole"
        model = self._model
        named = whole_policy(model.parameters, weights, version, model.frozen)
        try:
            folder = self._folder.write(((name, item.to(model.dtype)) for name, item in named), version)
            for path, body in self._routes.weight_update(str(folder), version):
                self._routes.require_updated(self._connection.post(path, body))
        except UnexpectedAnswer as error:
            raise EngineBroken(
                f"{self._connection.url} did not take the weights of version {version}: {error}; it reads them from "
                "rollout.server.weightsDirectory, which has to be the same folder there"
            ) from error
        finally:
            self._folder.clear()
        self._version, self._fault = version, None

    def held_bytes(self, depth: Depth) -> int:
        """Nothing of it is on this machine."""
        return 0

    def sleep(self, depth: Depth) -> None:
        assert not self._running, "nothing may be running"

    def close(self) -> None:
        self._connection.close()
        self._fault = "it is closed"

    # ---- calls

    @property
    def _unfinished(self) -> dict[int, Response]:
        return self._running | self._paused

    def _call_all(self, bound: int | None) -> None:
        under_way = set(self._called.values())
        for row, response in self._running.items():
            if row not in under_way:
                self._call(response, bound)

    def _call(self, response: Response, bound: int | None) -> None:
        """Ask for the next tokens of a response."""
        if response.spoilt_by is not None:
            return
        left = response.max_tokens - len(response.tokens)
        call = ContinuationCall(
            response.sequence(),
            min(left, self._tokens_per_call if bound is None else bound),
            response.sampling,
            sorted(self._ends(response)),
            self._seed(response),
        )
        self._num_calls += 1
        self._called[self._num_calls] = response.row_id
        self._connection.start(self._num_calls, self._routes.generate, self._routes.body(call))

    def _seed(self, response: Response) -> int:
        draw = draw_numbers(np.array([response.turn], np.int64), np.zeros(1, np.int64))
        if not self._routes.seeds_by_position:
            draw = np.array([response.first_draw + len(response.tokens)], np.int64)
        return int(bits_at(np.array([response.stream], np.uint64), draw)[0]) >> 2

    def _ends(self, response: Response) -> set[int]:
        return {*self._model.end_token_ids, *response.sampling.stop_token_ids}

    def _cancel(self, rows: Iterable[int]) -> None:
        """Calls of these rows come to nothing."""
        cancelled = set(rows)
        numbers = [number for number, row in self._called.items() if row in cancelled]
        self._connection.cancel(numbers)
        for number in numbers:
            del self._called[number]

    def _taken(self, number: int, answer: Answer | RLJobError) -> Response | None:
        """The response that a call belongs to, with what it got; None where it goes on no further."""
        row = self._called.pop(number, None)
        if row is None:  # of a call that was cancelled
            return None
        response = self._running[row]
        sampled = self._sampled(response, answer)
        response.add(sampled.tokens, sampled.log_probs, self._version)
        self._require_known_end(response, sampled)
        is_finished = sampled.finish == "stop" or len(response.tokens) >= response.max_tokens
        ending = response.ending(self._model.end_token_ids, is_finished=is_finished)
        if ending is None:
            return response
        self._ended.append((self._running.pop(row), ending))
        return None

    def _sampled(self, response: Response, answer: Answer | RLJobError) -> SampledTokens:
        """What a call was answered. Raises the error that it ended with."""
        row, url = row_number(response.row_id), self._connection.url
        if isinstance(answer, InvalidJob):
            raise InvalidJob(f"row {row}: {answer}") from answer
        if isinstance(answer, RLJobError):
            raise answer
        try:
            sampled = self._routes.sampled(answer)
        except UnexpectedAnswer as error:
            raise EngineBroken(f"row {row}: {url}: {error}; does rollout.server.routes name its kind?") from error
        if others := sampled.versions - {str(self._version)}:
            raise EngineBroken(
                f"row {row}: {url} sampled with weights {', '.join(sorted(others))}, and was given version "
                f"{self._version}: it was started anew, or somebody else gave it weights"
            )
        if sampled.finish == "abort":
            raise EngineBroken(f"row {row}: {url} aborted it")
        if not sampled.tokens:
            raise InvalidJob(
                f"row {row}: {url} gave no token after {len(response.sequence())}; start it with room for the rows of "
                "the job (data.maxPromptTokens + rollout.maxResponseTokens)"
            )
        return sampled

    def _require_known_end(self, response: Response, sampled: SampledTokens) -> None:
        """A server that ends by another token than the model's files say has another model."""
        last = sampled.tokens[-1]
        if sampled.finish == "stop" and last not in self._ends(response):
            raise InvalidJob(
                f"row {row_number(response.row_id)}: {self._connection.url} ended it with token {last}, which ends "
                "nothing by the files of the model; give the server the same generation_config.json, or name the token "
                "in rollout.stopTokenIds"
            )

    def _require_finite_unless_ended(self) -> None:
        """Raises BadData as long as a spoilt request is there, once what has ended is given."""
        for response in self._spoilt() if not self._ended else ():
            raise BadData(
                f"row {row_number(response.row_id)}: the logits of policy version {response.spoilt_by} are not finite "
                f"after {len(response.tokens)} tokens of its response"
            )

    def _spoilt(self) -> Iterator[Response]:
        return (response for response in self._running.values() if response.spoilt_by is not None)

    def _table(self) -> EndedRequests:
        result, self._ended = self._ended, []
        self._given = {item.row_id: len(item.prompt) + len(item.tokens) for item, _ in result}
        return ended_table(result)
