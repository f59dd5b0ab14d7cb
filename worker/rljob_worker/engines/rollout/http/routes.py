"""The routes of servers that generate from tokens and take new weights from a folder, as SGLang and vLLM publish them.

Pure: bodies and answers as JSON, no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal, Protocol

from rljob_worker.engines.rollout.requests import Sampling

Body = Mapping[str, Any]


class UnexpectedAnswer(ValueError):
    """An answer of another form than the route has."""


@dataclass(frozen=True, slots=True)
class ContinuationCall:
    """The next tokens of one response."""

    token_ids: Sequence[int]
    """Prompt and response so far."""
    max_tokens: int
    sampling: Sampling
    stop_token_ids: Sequence[int]
    """All tokens that end it."""
    seed: int
    """Below 2**62."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a server answers."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    finish: Literal["stop", "length", "abort"]
    versions: frozenset[str] = frozenset()
    """Names of the weights that it was sampled with, where the server says so."""


class Routes(Protocol):
    """What a server understands."""

    health: str
    generate: str
    seeds_by_position: bool
    """Whether a draw depends on the seed and the place in the sequence alone, so that all calls of a response have one
    seed; otherwise each call has its own."""

    def body(self, call: ContinuationCall) -> Body:
        """What `generate` is sent."""
        ...

    def sampled(self, answer: Body) -> SampledTokens:
        """Raises UnexpectedAnswer."""
        ...

    def weight_update(self, folder: str, version: int) -> Sequence[tuple[str, Body]]:
        """Calls that have the server take the weights of a folder, in their order."""
        ...

    def require_updated(self, answer: Body) -> None:
        """Raises UnexpectedAnswer, with the server's words, for a step of an update that did not succeed."""
        ...


class SGLangRoutes:
    """`/generate` and `/update_weights_from_disk`."""

    health, generate, seeds_by_position = "/health", "/generate", True

    def body(self, call: ContinuationCall) -> Body:
        """Log-probs are those of the sampled tokens, at the temperature: what SGLang gives unless it is told not to."""
        sampling = call.sampling
        return {
            "input_ids": list(call.token_ids),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": sampling.min_p,
                "max_new_tokens": call.max_tokens,
                "stop_token_ids": list(call.stop_token_ids),
                "sampling_seed": call.seed,
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }

    def sampled(self, answer: Body) -> SampledTokens:
        try:
            about = answer["meta_info"]
            entries = [(int(entry[1]), _log_prob(entry[0])) for entry in about["output_token_logprobs"]]
            version = about.get("weight_version")
            return SampledTokens(
                [token for token, _ in entries],
                [log_prob for _, log_prob in entries],
                _finish(about["finish_reason"]["type"]),
                frozenset() if version is None else frozenset([str(version)]),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise UnexpectedAnswer(f"no meta_info.output_token_logprobs and finish_reason: {error!r}") from error

    def weight_update(self, folder: str, version: int) -> Sequence[tuple[str, Body]]:
        body = {
            "model_path": folder,
            "abort_all_requests": True,
            "flush_cache": True,
            "weight_version": str(version),
        }
        return [("/update_weights_from_disk", body)]

    def require_updated(self, answer: Body) -> None:
        if answer.get("success") is not True:
            raise UnexpectedAnswer(str(answer.get("message") or answer)[:500])


class VLLMRoutes:
    """`/inference/v1/generate`, and what a server with VLLM_SERVER_DEV_MODE=1 has to pause, reload and go on."""

    health, generate, seeds_by_position = "/health", "/inference/v1/generate", False

    def body(self, call: ContinuationCall) -> Body:
        sampling = call.sampling
        return {
            "token_ids": list(call.token_ids),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "max_tokens": call.max_tokens,
                "stop_token_ids": list(call.stop_token_ids),
                "ignore_eos": True,
                "seed": call.seed,
                "logprobs": 0,
                "detokenize": False,
            },
        }

    def sampled(self, answer: Body) -> SampledTokens:
        try:
            choice = answer["choices"][0]
            spans = choice.get("weight_versions") or ()
            result = SampledTokens(
                [int(token) for token in choice["token_ids"]],
                [_log_prob(entry["logprob"]) for entry in choice["logprobs"]["content"]],
                _finish(choice["finish_reason"]),
                frozenset(str(span["version"]) for span in spans),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise UnexpectedAnswer(f"no choices with token_ids and logprobs.content: {error!r}") from error
        if len(result.tokens) != len(result.log_probs):
            raise UnexpectedAnswer(f"{len(result.tokens)} token_ids and {len(result.log_probs)} log-probs")
        return result

    def weight_update(self, folder: str, version: int) -> Sequence[tuple[str, Body]]:
        return [
            ("/pause?mode=abort", {}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}),
            ("/reset_prefix_cache", {}),
            ("/update_weight_version", {"new_version": str(version)}),
            ("/resume", {}),
        ]

    def require_updated(self, answer: Body) -> None:
        if answer.get("success") is False or "error" in answer:
            raise UnexpectedAnswer(str(answer.get("error") or answer)[:500])


ROUTES: Mapping[str, Routes] = {"SGLang": SGLangRoutes(), "VLLM": VLLMRoutes()}
"""By `rollout.server.routes`."""


def _log_prob(value: Any) -> float:
    """JSON without NaN has null in its place."""
    return nan if value is None else float(value)


def _finish(reason: Any) -> Literal["stop", "length", "abort"]:
    if reason not in ("stop", "length", "abort"):
        raise ValueError(f"finish reason {reason!r}")
    result: Literal["stop", "length", "abort"] = reason
    return result
