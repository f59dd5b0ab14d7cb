"""What the stages may ask of an engine that generates.

engine.submit(requests)
while len(ended := engine.advance()):
    ...                               # reward them while the others go on
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.requests import Ended, Requests

if TYPE_CHECKING:
    import torch

Depth = Literal["Cache", "Weights"]
"""What sleep gives back: what only running requests need, or the engine's own copy of the weights, too."""


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples responses with its own copy of a policy. Where a copy is spread over ranks, all of them call every method
    with the same arguments in the same order.

    A response is a function of weights, prompt, sampling, row_id and turn; what runs beside it may change the last
    digits of a log-prob at most.
    """

    def submit(self, requests: Requests) -> None:
        """Queue requests; computes nothing. Raises BadData for one that no engine could answer, such as an empty prompt
        or tokens that the model has not, and InvalidJob for one that this engine has no room or no sampling for (see
        `limits`); both name its row and the reason. None of the requests is then queued, and the engine is as it was.
        """
        ...

    def advance(self) -> Ended:
        """Decode until at least one request has ended; all that have. Empty when none is left.

        Raises BadData for logits that are not finite, naming the row and the policy version, and again until that row
        is aborted. Requests that ended before come with the next call, and the others go on.
        """
        ...

    def abort(self, row_ids: Indices) -> Ended:
        """End the requests of these rows now: what there is of them, and what had ended and was not given yet. Rows
        that have none are passed over."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take a whole policy, by Hugging Face name, in any order and rounded to the precision of the engine, and be of
        that version once its last tensor is there; each tensor is good until the next one is asked for. Requests that
        run go on with it, what was computed for them made anew.

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
        """Give memory that only generation needs back to training; nothing may be running. Idempotent. After "Weights"
        the next call is `load_weights`."""
        ...

    def wake(self) -> None:
        """Be ready to generate again; `advance` does so by itself. Idempotent."""
        ...

    def close(self) -> None:
        """End what the engine started. Idempotent."""
        ...
