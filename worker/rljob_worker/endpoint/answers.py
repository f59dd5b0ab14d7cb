"""Answers as JSON: of chat completions, as one body or as chunks of a stream, and of vLLM's route for tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rljob_worker.endpoint.calls import CalledFunction, ChatCall, PolicyTurn, RequestRefused, TokenCall

Body = dict[str, Any]


def completion(answer_id: str, model: str, call: ChatCall, answer: PolicyTurn) -> Body:
    """The body of a chat completion."""
    message: Body = {"role": "assistant", "content": answer.content or None, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [_function(item) for item in answer.tool_calls]
    choice: Body = {"index": 0, "message": message, "finish_reason": answer.finish_reason, "logprobs": None}
    if call.wants_log_probs:
        choice["logprobs"] = _log_probs(answer)
    body = {**_head(answer_id, model, "chat.completion"), "choices": [choice], "usage": usage(answer)}
    if call.wants_token_ids:
        body["prompt_token_ids"], choice["token_ids"] = list(answer.prompt_ids), list(answer.token_ids)
    return body


def chunks(answer_id: str, model: str, call: ChatCall, answer: PolicyTurn) -> Iterator[Body]:
    """Bodies of a stream: role, thought, words, calls, why it ended, and counts where they are asked for."""
    head = _head(answer_id, model, "chat.completion.chunk")

    def chunk(delta: Body, finish_reason: str | None = None, log_probs: Body | None = None) -> Body:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": log_probs}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if answer.reasoning:
        yield chunk({"reasoning_content": answer.reasoning})
    log_probs = _log_probs(answer) if call.wants_log_probs else None
    if answer.content or log_probs is not None:
        yield chunk({"content": answer.content}, log_probs=log_probs)
    for index, item in enumerate(answer.tool_calls):
        yield chunk({"tool_calls": [{"index": index, **_function(item)}]})
    yield chunk({}, answer.finish_reason)
    if call.wants_usage:
        yield {**head, "choices": [], "usage": usage(answer)}


def tokens(answer_id: str, model: str, call: TokenCall, answer: PolicyTurn) -> Body:
    """The body of vLLM's route for tokens."""
    choice: Body = {
        "index": 0,
        "token_ids": list(answer.token_ids),
        "finish_reason": "length" if answer.finish_reason == "length" else "stop",
        "stop_reason": None,
        "logprobs": None,
    }
    if call.wants_log_probs:
        # clients of either published form: the token as a number, and as text
        choice["logprobs"] = {
            "content": [
                {"token_id": token, "token": f"token_id:{token}", "logprob": value, "rank": None, "top_logprobs": []}
                for token, value in zip(answer.token_ids, answer.log_probs, strict=True)
            ]
        }
    head = {"request_id": call.request_id or answer_id, "model": model, "created": int(time.time())}
    return {**head, "output_mode": "tokens", "choices": [choice], "usage": usage(answer)}


def usage(answer: PolicyTurn) -> Body:
    """Counts of tokens."""
    prompt, sampled = len(answer.prompt_ids), len(answer.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def models(names: list[str]) -> Body:
    """The body of `/v1/models`."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> Body:
    """One of them."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "rljob"}


def refusal(error: RequestRefused) -> Body:
    """The body of an error, as clients of OpenAI read it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _head(answer_id: str, model_name: str, kind: str) -> Body:
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model_name}


def _function(call: CalledFunction) -> Body:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _log_probs(answer: PolicyTurn) -> Body:
    entries = zip(answer.token_texts, answer.log_probs, strict=True)
    return {
        "content": [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in entries
        ],
        "refusal": None,
    }
