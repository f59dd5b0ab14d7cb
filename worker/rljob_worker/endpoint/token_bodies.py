"""Bodies of vLLM's route for tokens, `/inference/v1/generate`, as calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_worker.endpoint.calls import RequestRefused, TokenCall
from rljob_worker.endpoint.chat_bodies import most_tokens
from rljob_worker.endpoint.sampling_rules import TOP_LOG_PROBS, SamplingRules

NOT_DONE = ("features", "content_parts", "kv_transfer_params", "ec_transfer_params")
LARGEST_TOKEN = (1 << 31) - 1


def token_call(body: Mapping[str, Any], rules: SamplingRules) -> TokenCall:
    """Raises RequestRefused, which names the field."""
    for name in NOT_DONE:
        if body.get(name):
            raise RequestRefused(
                f"{name} is not supported: prompts are of tokens alone", param=name, code="unsupported"
            )
    if body.get("stream"):
        raise RequestRefused("stream is not supported for tokens; leave it out", param="stream", code="unsupported")
    if body.get("output_mode", "tokens") != "tokens":
        raise RequestRefused("output_mode is not tokens", param="output_mode", code="unsupported")
    sampling = body.get("sampling_params", {})
    if not isinstance(sampling, dict):
        raise RequestRefused("sampling_params is not an object", param="sampling_params")
    rules.check(sampling, "sampling_params.")
    request_id = body.get("request_id")
    return TokenCall(
        token_ids=_token_ids(body.get("token_ids")),
        max_tokens=most_tokens(sampling, "max_tokens", prefix="sampling_params."),
        request_id=request_id[:128] if isinstance(request_id, str) else None,
        wants_log_probs=sampling.get("logprobs") is not None,
        top_log_probs=_top_log_probs(sampling, rules),
    )


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise RequestRefused("token_ids is not a list of one token at least", param="token_ids")
    for place, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= LARGEST_TOKEN:
            raise RequestRefused(f"token_ids[{place}] is {token!r}, not a token", param=f"token_ids[{place}]")
    return value


def _top_log_probs(sampling: Mapping[str, Any], rules: SamplingRules) -> int:
    """vLLM's number of `logprobs`. The 1 that clients write for the sampled token is no more than that where the engine
    gives no others."""
    name, number = "sampling_params.logprobs", sampling.get("logprobs")
    if rules.top_log_probs(sampling.get(TOP_LOG_PROBS), f"sampling_params.{TOP_LOG_PROBS}"):
        message = f"sampling_params.{TOP_LOG_PROBS} is no parameter of this route; write the number as {name}"
        raise RequestRefused(message, param=f"sampling_params.{TOP_LOG_PROBS}", code="unsupported")
    if number == 1 and not isinstance(number, bool) and not rules.gives_top_log_probs:
        return 0
    return rules.top_log_probs(number, name)
