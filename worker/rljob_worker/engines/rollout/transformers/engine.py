"""`TransformersRollout`: sampling with nothing but transformers, as fast as its modules allow."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.arriving_policy import copy_policy
from rljob_worker.engines.rollout.protocol import Depth
from rljob_worker.engines.rollout.requests import Ended, Requests
from rljob_worker.engines.rollout.transformers.decoding import Decoding
from rljob_worker.engines.rollout.transformers.request import ended, requests_of
from rljob_worker.errors import InvalidJob


class TransformersRollout:
    """A RolloutEngine over a causal LM that `models.load_policy` made."""

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        end_token_ids: tuple[int, ...],
        max_batch_rows: int | None = None,
    ) -> None:
        self.model = model.eval().to(device)
        self.version = 0
        self._decoding = Decoding(self.model, end_token_ids, max_batch_rows)
        self._num_positions: int | None = getattr(model.config, "max_position_embeddings", None)
        self._is_whole = True

    def submit(self, requests: Requests) -> None:
        require_positions(requests, self._num_positions)
        self._decoding.submit(requests_of(requests))

    def advance(self) -> Ended:
        assert self._is_whole, f"the policy after version {self.version} has not come whole"
        with torch.inference_mode():
            while not (found := self._decoding.take_ended()) and not self._decoding.is_idle:
                self._decoding.advance(self.version)
        return ended(found)

    def abort(self, row_ids: Indices) -> Ended:
        with torch.inference_mode():
            self._decoding.abort(row_ids)
        return ended(self._decoding.take_ended())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self._is_whole = False
        self._decoding.put_back()
        copy_policy(dict(self.model.named_parameters(remove_duplicate=False)), weights, version)
        self.version, self._is_whole = version, True

    def sleep(self, depth: Depth) -> None:
        """The weights stay, whatever the depth: they may be the trainer's own."""
        assert self._decoding.is_idle, "requests that run need what was computed for them"
        self._decoding.drop_cache()

    def wake(self) -> None:
        """Nothing to do: the next request reserves what it needs."""

    def close(self) -> None:
        """Nothing was started."""


def require_positions(requests: Requests, num_positions: int | None) -> None:
    """Raises InvalidJob for a request that may become longer than a model with so many positions can read."""
    if num_positions is None or not len(requests):
        return
    longest = requests.prompts.lengths[requests.prompt_of] + requests.max_tokens
    at = int(longest.argmax())
    if longest[at] > num_positions:
        raise InvalidJob(
            f"row {requests.row_ids[at]}: a prompt of {longest[at] - requests.max_tokens[at]} tokens and a response of "
            f"up to {requests.max_tokens[at]} are more than the {num_positions} positions of the model "
            "(max_position_embeddings); lower rollout.maxResponseTokens or data.maxPromptTokens"
        )
