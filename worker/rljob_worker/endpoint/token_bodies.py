"""Bodies of vLLM's route for tokens, `/inference/v1/generate`, as calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_worker.endpoint.calls import RequestRefused, TokenCall
from rljob_worker.endpoint.chat_bodies import most_tokens
from rljob_worker.endpoint.sampling_rules import TOP_LOG_PROBS, SamplingRules, passing_over

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
        wants_log_probs=_wants_log_probs(sampling.get("logprobs"), rules),
    )


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise RequestRefused("token_ids is not a list of one token at least", param="token_ids")
    for place, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= LARGEST_TOKEN:
            raise RequestRefused(f"token_ids[{place}] is {token!r}, not a token", param=f"token_ids[{place}]")
    return value


def _wants_log_probs(value: Any, rules: SamplingRules) -> bool:
    """vLLM's number of likely tokens that are given besides the sampled one, -1 for all; 1 may be that token itself."""
    if value in (None, 0, 1):
        return value is not None
    name = "sampling_params.logprobs"
    if not isinstance(value, int) or value < -1:
        raise RequestRefused(f"{name} is {value!r}, not a whole number from 0 on", param=name)
    if TOP_LOG_PROBS in rules.passed_over:
        return True
    message = f"{name} is {value}, and the engine gives that of the sampled token alone; write 1"
    raise RequestRefused(message + passing_over(TOP_LOG_PROBS), param=name, code="unsupported")
