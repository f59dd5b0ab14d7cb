"""vLLM's sampler, replaced by ours: a draw belongs to its position, not to how many there were before it.

vLLM's own generators move on with every draw, also with those that are thrown away when a request is preempted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from rljob_worker.batch import Indices
from rljob_worker.engines.rollout.vllm.sampling import DrawnRows
from rljob_worker.engines.rollout.vllm.speculative_tokens import accepted_tokens, guessed_places


def draw_by_position(worker: Any) -> None:
    """On a worker of vLLM, before it has requests."""
    runner = worker.model_runner
    rows = _RowsOfBatch(runner)
    runner.sampler = PositionSampler(rows, runner.sampler.logprobs_mode)
    if getattr(runner, "rejection_sampler", None) is not None:
        runner.rejection_sampler = GuessSampler(rows)


class _RowsOfBatch:
    """What vLLM's batch has in its rows."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._known: tuple[SamplingMetadata, DrawnRows] | None = None

    def of(self, metadata: SamplingMetadata) -> DrawnRows:
        """metadata: vLLM makes it anew whenever rows come, go or move."""
        if self._known is None or self._known[0] is not metadata:
            requests = self._runner.requests
            params = [requests[name].sampling_params for name in self._runner.input_batch.req_ids]
            self._known = metadata, DrawnRows.of(param.extra_args for param in params)
        return self._known[1]

    @property
    def num_drawn(self) -> Indices:
        """[rows] tokens that each has, besides its prompt and what is guessed."""
        batch = self._runner.input_batch
        rows = slice(batch.num_reqs)
        counts: Indices = (batch.num_tokens_no_spec[rows] - batch.num_prompt_tokens[rows]).astype(np.int64)
        return counts


class PositionSampler(Sampler):  # type: ignore[misc]
    """One token for each row of a batch."""

    def __init__(self, rows: _RowsOfBatch, logprobs_mode: Any) -> None:
        super().__init__(logprobs_mode)
        self._rows = rows

    def forward(self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, **options: object) -> SamplerOutput:
        rows = self._rows.of(sampling_metadata)
        tokens, log_probs = rows.sample(logits, self._rows.num_drawn)
        return SamplerOutput(tokens.to(torch.int32)[:, None], _of_tokens(tokens, log_probs, rows.top(logits)))


class GuessSampler:
    """Tokens for each row of a batch in which some were guessed, in place of vLLM's `RejectionSampler`."""

    def __init__(self, rows: _RowsOfBatch) -> None:
        self._rows = rows

    def __call__(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        num_guessed = np.array(metadata.num_draft_tokens, np.int64)
        rows, places = guessed_places(num_guessed)
        repeated = self._rows.of(sampling_metadata).repeated(num_guessed + 1)
        sampled, log_probs = repeated.sample(logits, self._rows.num_drawn[rows] + places)
        tokens = accepted_tokens(sampled, metadata.draft_token_ids, num_guessed)
        at = (torch.from_numpy(rows).to(logits.device), torch.from_numpy(places).to(logits.device))

        def spread(values: torch.Tensor) -> torch.Tensor:
            """[rows x most places, ...]: each where it was sampled."""
            table = values.new_zeros((*tokens.shape, *values.shape[1:]))
            table[at] = values
            return table.flatten(0, 1)

        top = repeated.top(logits)
        spread_top = None if top is None else (spread(top[0]), spread(top[1]))
        return SamplerOutput(
            tokens.to(torch.int32), _of_tokens(tokens.clamp(min=0).flatten(), spread(log_probs), spread_top)
        )


def _of_tokens(
    tokens: torch.Tensor, log_probs: torch.Tensor, top: tuple[torch.Tensor, torch.Tensor] | None
) -> LogprobsTensors:
    """Log-probs of the sampled tokens, and of likely ones behind them; nobody reads their ranks."""
    ids, values = tokens.to(torch.int32)[:, None], log_probs[:, None]
    if top is not None:
        ids, values = torch.cat([ids, top[0].to(torch.int32)], 1), torch.cat([values, top[1]], 1)
    return LogprobsTensors(ids, values, torch.zeros_like(tokens))
