"""What the stages may ask of an engine that generates.

engine.submit(requests)
while engine.load.running or engine.load.waiting:
    ended = engine.advance(most_steps=8)
    ...                               # reward them while the others go on, submit next turns, abort, load weights

One thread calls an engine; `wake` alone may be called from others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import EndedRequests, Load, PartialResponses, Requests

if TYPE_CHECKING:
    import torch

Depth = Literal["Cache", "Weights"]
"""What sleep gives back: what only running requests need, or the engine's own copy of the weights, too."""


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples responses with its own copy of a policy. Where a copy is spread over ranks, all of them call every method
    with the same arguments in the same order.

    A response is a function of weights, prompt, sampling, row_id and turn: the draw at a position belongs to (seed,
    row_id, turn, position), so that bounds of `advance`, pauses and aborts with the tokens submitted again change no
    token. What runs beside it may change the last digits of a log-prob at most.
    """

    def submit(self, requests: Requests) -> None:
        """Queue requests; computes nothing. Raises BadData for one that no engine could answer, such as an empty prompt
        or tokens that the model has not, and InvalidJob for one that this engine has no room or no sampling for (see
        `limits`); both name its row and the reason. None of the requests is then queued, and the engine is as it was.
        """
        ...

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        """Decode until at least one request has ended, `most_steps` (from 1 on; None: no bound) are over, or `wake` was
        called; all that have ended, possibly none. A step is one more token for what runs, or the first ones of what
        waited. Empty when nothing is left to decode.

        Raises BadData for logits that are not finite, naming the row and the policy version, and again until that row
        is aborted or paused. Requests that ended before come with the next call, and the others go on.
        """
        ...

    def wake(self) -> None:
        """From any thread: let `advance` return after the step that it is in, or that it takes next."""
        ...

    def peek(self, row_ids: Indices) -> PartialResponses:
        """What there is by now of requests that have not ended, in the order of these rows. Raises BadData for a row
        that has none."""
        ...

    def abort(self, row_ids: Indices) -> EndedRequests:
        """End the requests of these rows now: what there is of them, and what had ended and was not given yet. Rows
        that have none are passed over."""
        ...

    def pause(self, row_ids: Indices) -> None:
        """Decode these rows no further until `resume`: their tokens stay, their keys and values go. A row that is
        paused stays so. Raises BadData, pausing none, for a row that has no request."""
        ...

    def resume(self, row_ids: Indices) -> None:
        """Let rows go on that were paused, before others that wait; those that were not are passed over. Raises
        BadData, resuming none, for a row that has no request."""
        ...

    def hold(self, row_ids: Indices) -> None:
        """Keep keys and values of rows that ended with the last `advance` until their next turns, which then compute
        only what is new, or `release`, new weights or `sleep`. The engine has room for that many bytes (see `limits`);
        beyond that the longest unused go first, and their rows are computed anew, which changes no token.

        Raises, holding none, BadData for a row that did not end then, and InvalidJob for rows of a call that together
        are beyond that room.
        """
        ...

    def release(self, row_ids: Indices) -> None:
        """Hold these rows no longer. Those that are not held are passed over."""
        ...

    @property
    def load(self) -> Load:
        """What there is to do."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool = False) -> None:
        """Take of every tensor of a policy what this rank keeps (`slices`), by Hugging Face name, in any order and
        rounded to the precision of the engine, and be of that version once the last one is there. Each tensor is good
        until the next one is asked for, all of them until this returns where they are `lasting`. Requests that run go
        on with it, what was computed for them made anew.

        Raises InvalidJob naming tensors that are missing, that come twice, and names or shapes that the model does not
        have; after that, and after an error of `weights`, the engine generates no more until it has got a whole policy.
        """
        ...

    @property
    def version(self) -> int:
        """The policy version of the last `load_weights`; 0 for the weights it was built with."""
        ...

    def held_bytes(self, depth: Depth) -> int:
        """What `sleep` would give back now."""
        ...

    def sleep(self, depth: Depth) -> None:
        """Give memory that only generation needs back to training, until the next `advance`; nothing may be running or
        waiting. Idempotent. After "Weights" the next call is `load_weights`."""
        ...

    def close(self) -> None:
        """End what the engine started. Idempotent."""
        ...
