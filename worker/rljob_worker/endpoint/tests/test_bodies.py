"""Bodies as calls: the form of messages, and every field that is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from rljob_api.v1alpha1.conversation import ReliedOn
from rljob_worker.endpoint.calls import RequestRefused
from rljob_worker.endpoint.chat_bodies import chat_call
from rljob_worker.endpoint.sampling_rules import SamplingRules
from rljob_worker.endpoint.tests.serving import asked
from rljob_worker.endpoint.token_bodies import token_call

CLAMPS, REFUSES = SamplingRules(temperature=0.7, stop=("END",)), SamplingRules("Refuse", temperature=0.7, stop=("END",))


def refusal(call, body, rules=CLAMPS):
    with pytest.raises(RequestRefused) as raised:
        call(body, rules)
    return raised.value


def test_messages_take_the_form_of_chat_templates():
    call = {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "well"},
        {"role": "tool", "tool_call_id": "call_0_0", "name": "add", "content": "1"},
    ]
    tool = {"type": "function", "function": {"name": "add", "strict": True}}
    body = {"messages": messages, "tools": [tool], "max_completion_tokens": 5, "max_tokens": 9, "unknown": {}}
    result = chat_call(body, CLAMPS)
    parsed = call | {"function": {"name": "add", "arguments": {"a": 1}}}
    assert result.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "", "tool_calls": [parsed], "reasoning_content": "well"},
        {"role": "tool", "tool_call_id": "call_0_0", "name": "add", "content": "1"},
    ]
    schema = {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert result.tools == ({"type": "function", "function": schema},) and result.max_tokens == 5
    assert chat_call(body | {"tool_choice": "none"}, CLAMPS).tools == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"]}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "name": 7}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"functions": [{}]}, "functions"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(fields, param):
    error = refusal(chat_call, asked() | fields)
    assert (error.status, error.param) == (400, param) and param.partition("[")[0] in error.message


def test_arguments_of_calls_are_json_objects():
    for arguments in ("{", "[1]", 7):
        call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
        error = refusal(chat_call, {"messages": [{"role": "assistant", "tool_calls": [call]}]})
        assert error.param == "messages[0].tool_calls[0].function.arguments"


def test_pictures_are_parts_with_data_urls():
    def body(url):
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        return {"messages": [{"role": "user", "content": parts}]}

    for url in ("https://example.org/a.png", "file:///etc/passwd", "data:text/html,x", 7):
        assert "nothing is fetched" in refusal(chat_call, body(url)).message
    url = "data:image/png;base64,AAAA"
    (message,) = chat_call(body(url), CLAMPS).messages
    assert message["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]


SAMPLING = {
    "temperature": 0.0,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "logit_bias": {"5": 100},
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "stop": ["END", "Observation:"],
    "stop_token_ids": [3],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.mark.parametrize(("name", "value"), SAMPLING.items())
def test_sampling_that_differs_from_the_job_is_passed_over_or_refused_as_the_job_says(name, value):
    assert chat_call(asked(**{name: value}), CLAMPS).max_tokens is None
    error = refusal(chat_call, asked(**{name: value}), REFUSES)
    assert (error.param, error.code) == (name, "sampling") and "otherSampling: Clamp" in error.message


RELIED_ON = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}, "strict": True}},
    "min_tokens": 4,
    "ignore_eos": True,
    "top_logprobs": 5,
    "structured_outputs": {"json": {}},
    "guided_json": {},
    "guided_regex": "a*",
    "guided_choice": ["yes", "no"],
    "guided_grammar": "root ::= 'a'",
}


def token_body(**sampling):
    return {"token_ids": [1], "sampling_params": sampling}


@pytest.mark.parametrize("name", get_args(ReliedOn))
def test_what_callers_rely_on_is_passed_over_on_each_route_where_the_job_lists_it_alone(name):
    value, rules = RELIED_ON[name], replace(CLAMPS, passed_over=frozenset({name}))
    for error in (
        refusal(chat_call, asked(**{name: value})),
        refusal(token_call, token_body(**{name: value})),
        refusal(token_call, token_body(**{name: value}), replace(REFUSES, passed_over=frozenset(RELIED_ON) - {name})),
    ):
        assert f"list {name} in rollout.conversation.endpoint.passedOver" in error.message
        reasons = {"top_logprobs": "sampled token alone", "ignore_eos": "ends where the policy ends it"}
        assert reasons.get(name, "whole distribution") in error.message
    assert chat_call(asked(**{name: value}, logprobs=True), rules) == chat_call(asked(logprobs=True), CLAMPS)
    assert token_call(token_body(**{name: value}), rules) == token_call(token_body(), CLAMPS)
    assert "passedOver" not in refusal(chat_call, asked(n=2), rules).message


@pytest.mark.parametrize("number", [5, -1])
def test_likely_tokens_besides_the_sampled_one_are_passed_over_on_the_route_for_tokens_as_well(number):
    error = refusal(token_call, token_body(logprobs=number))
    assert error.param == "sampling_params.logprobs" and "list top_logprobs in" in error.message
    rules = replace(REFUSES, passed_over=frozenset({"top_logprobs"}))
    assert token_call(token_body(logprobs=number), rules) == token_call(token_body(logprobs=1), REFUSES)
    for wrong in ("5", -2, [5]):
        assert refusal(token_call, token_body(logprobs=wrong), rules).param == "sampling_params.logprobs"


GIVES = replace(REFUSES, gives_top_log_probs=True)


@pytest.mark.parametrize("number", [0, 1, 20, None])
def test_likely_tokens_are_asked_for_by_number_on_each_route(number):
    call = chat_call(asked(logprobs=True, top_logprobs=number), GIVES)
    assert (call.wants_log_probs, call.top_log_probs) == (True, number or 0)
    call = token_call(token_body(logprobs=number), GIVES)
    assert (call.wants_log_probs, call.top_log_probs) == (number is not None, number or 0)


@pytest.mark.parametrize("number", [21, -1, -2, 1.5, True, "5", [5]])
def test_a_number_of_likely_tokens_that_nobody_gives_is_refused_on_each_route(number):
    error = refusal(chat_call, asked(logprobs=True, top_logprobs=number), GIVES)
    assert error.param == "top_logprobs" and "a whole number from 0 to 20" in error.message
    error = refusal(token_call, token_body(logprobs=number), GIVES)
    assert error.param == "sampling_params.logprobs" and "a whole number from 0 to 20" in error.message


def test_likely_tokens_need_the_log_probs_that_they_stand_beside():
    for fields in ({}, {"logprobs": False}, {"logprobs": None}):
        error = refusal(chat_call, asked(top_logprobs=2, **fields), GIVES)
        assert error.param == "top_logprobs" and "needs logprobs: true" in error.message
    error = refusal(token_call, token_body(top_logprobs=2), GIVES)
    assert error.param == "sampling_params.top_logprobs" and "as sampling_params.logprobs" in error.message


def test_the_1_that_clients_write_for_the_sampled_token_is_no_more_where_the_engine_gives_no_others():
    call = token_call(token_body(logprobs=1), CLAMPS)
    assert (call.wants_log_probs, call.top_log_probs) == (True, 0)


def test_the_sampling_of_the_job_is_never_refused():
    same = {"temperature": 0.7, "top_p": 1, "top_k": -1, "seed": None, "stop": "END", "n": 1, "logit_bias": {}}
    assert chat_call(asked(**same, response_format={"type": "text"}, tool_choice="auto"), REFUSES)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids[1]"),
        ({"token_ids": [True]}, "token_ids[0]"),
        ({"token_ids": [1 << 40]}, "token_ids[0]"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"stream": True}, "stream"),
        ({"output_mode": "text"}, "output_mode"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": {"logprobs": 5}}, "sampling_params.logprobs"),
        ({"sampling_params": {"max_tokens": "9"}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"n": 4}}, "sampling_params.n"),
    ],
)
def test_bad_fields_of_the_route_for_tokens_are_named(fields, param):
    assert refusal(token_call, {"token_ids": [1, 2]} | fields).param == param
