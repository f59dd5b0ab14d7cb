"""Answers as JSON: of chat completions, as one body or as chunks of a stream, and of vLLM's route for tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from rljob_worker.endpoint.calls import (
    CalledFunction,
    ChatCall,
    PartialTurn,
    PolicyTurn,
    RequestRefused,
    TokenCall,
)

Body = dict[str, Any]
LEAST_LOG_PROB = -9999.0
"""What a token of probability 0 has, as in answers of OpenAI and vLLM: JSON has no infinity."""


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


class StreamedAnswer:
    """Bodies of a stream as JSON: role, thought and words as they come, calls, why it ended, and counts where they are
    asked for."""

    def __init__(self, answer_id: str, model: str, call: ChatCall) -> None:
        head = as_json(_head(answer_id, model, "chat.completion.chunk"))
        self._begin, self._call = head[:-1] + ', "choices": [', call
        """What every body begins with."""
        self._said: PartialTurn | None = None

    def more(self, said: PartialTurn) -> list[str]:
        """What a turn says more than before."""
        bodies = [self._chunk({"role": "assistant", "content": ""})] if self._said is None else []
        before, self._said = self._said or PartialTurn(), said
        if thought := _rest(said.reasoning, before.reasoning):
            bodies.append(self._chunk({"reasoning_content": thought}))
        if words := _rest(said.content, before.content):
            bodies.append(self._chunk({"content": words}))
        return bodies

    def end(self, answer: PolicyTurn) -> list[str]:
        """What is left of a turn that is whole."""
        bodies = self.more(PartialTurn(answer.reasoning, answer.content))
        if self._call.wants_log_probs:
            bodies.append(self._chunk({"content": ""}, log_probs=_log_probs(answer)))
        for index, item in enumerate(answer.tool_calls):
            bodies.append(self._chunk({"tool_calls": [{"index": index, **_function(item)}]}))
        bodies.append(self._chunk({}, answer.finish_reason))
        if self._call.wants_usage:
            bodies.append(f'{self._begin}], "usage": {as_json(usage(answer))}}}')
        return bodies

    def _chunk(self, delta: Body, finish_reason: str | None = None, log_probs: Body | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": log_probs}
        return f"{self._begin}{as_json(choice)}]}}"


def _rest(whole: str, said: str) -> str:
    """What comes behind what was said."""
    return whole[len(said) :] if whole.startswith(said) else ""


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
                {**_token_entry(token, value), "rank": None, "top_logprobs": _likely(answer, place, _token_entry)}
                for place, (token, value) in enumerate(zip(answer.token_ids, answer.log_probs, strict=True))
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


def as_json(body: Body) -> str:
    """As it is written."""
    return json.dumps(body, ensure_ascii=False)


def _head(answer_id: str, model_name: str, kind: str) -> Body:
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model_name}


def _function(call: CalledFunction) -> Body:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _log_probs(answer: PolicyTurn) -> Body:
    likely = {} if answer.likely is None else answer.likely.texts
    shown = {text: (text.decode(errors="replace"), list(text)) for text in {*answer.token_texts, *likely.values()}}
    of_token = {token: shown[text] for token, text in likely.items()}

    def likely_entry(token: int, value: float) -> Body:
        return _text_entry(of_token[token], value)

    content = [
        {**_text_entry(shown[text], value), "top_logprobs": _likely(answer, place, likely_entry)}
        for place, (text, value) in enumerate(zip(answer.token_texts, answer.log_probs, strict=True))
    ]
    return {"content": content, "refusal": None}


def _likely(answer: PolicyTurn, place: int, entry: Callable[[int, float], Body]) -> list[Body]:
    return [] if answer.likely is None else [entry(token, value) for token, value in answer.likely.at(place)]


def _text_entry(shown: tuple[str, list[int]], value: float) -> Body:
    """shown: a token as text, in which parts of characters are the sign for what is not Unicode, and its bytes."""
    text, octets = shown
    return {"token": text, "logprob": max(value, LEAST_LOG_PROB), "bytes": octets}


def _token_entry(token: int, value: float) -> Body:
    return {"token_id": token, "token": f"token_id:{token}", "logprob": max(value, LEAST_LOG_PROB)}
