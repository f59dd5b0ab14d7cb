"""Calls in each format, and what a model reads about those that it wrote wrongly."""

from __future__ import annotations

import pytest

from rljob_worker.conversations.rendering.tests.chat_models import tool
from rljob_worker.conversations.rendering.tool_calls import ToolFormat, parse_calls

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_of_a_turn_are_parsed_in_their_order_with_ids() -> None:
    text, calls = parse_calls(f"well\n{CALL}\n{CALL.replace('1', '2')}", "Hermes", turn=4)
    assert text == "well"
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("call_4_0", "add", {"a": 1}),
        ("call_4_1", "add", {"a": 2}),
    ]


@pytest.mark.parametrize("text", ["no call here ", '{"name": "add", "arguments": {}}', ""])
def test_text_without_a_call_is_left_as_it_is(text: str) -> None:
    assert parse_calls(text, "Hermes") == (text, ())


@pytest.mark.parametrize(
    "raw",
    [
        '{"name": "add", "arguments": {"a": 1}}',
        '{"name": "add", "parameters": {"a": 1}}',
        # as some models have learned from logs of APIs
        '{"name": "add", "arguments": "{\\"a\\": 1}"}',
    ],
)
def test_arguments_are_an_object_under_either_name_or_as_text(raw: str) -> None:
    _, (call,) = parse_calls(f"<tool_call>{raw}</tool_call>", "Hermes")
    assert (call.name, call.arguments, call.fault, call.raw) == ("add", {"a": 1}, None, raw)


def test_arguments_may_be_nested() -> None:
    nested = "[" * 62 + "1" + "]" * 62
    _, (call,) = parse_calls(f'<tool_call>{{"name": "add", "arguments": {{"a": {nested}}}}}</tool_call>', "Hermes")
    assert call.fault is None and call.arguments is not None


def test_a_last_call_without_its_end_counts_where_it_is_whole() -> None:
    _, (call,) = parse_calls('<tool_call>{"name": "add", "arguments": {}}', "Hermes")
    assert call.arguments == {} and call.fault is None
    _, (call,) = parse_calls('<tool_call>{"name": "add", "argu', "Hermes")
    assert call.arguments is None


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        ('{"name": "add", ', "the call is not JSON: Expecting property name"),
        ('["add"]', 'the call is not an object with a "name"'),
        ('{"name": 3}', 'the call is not an object with a "name"'),
        ('{"name": "add", "arguments": [1]}', "the arguments are [1], not an object"),
        ('{"name": "add", "arguments": "a"}', "the arguments are not JSON: "),
        ("[" * 100_000, "the call is not JSON: "),
        # what is read would not be written as JSON again
        (f'{{"name": "add", "arguments": {{"a": {"[" * 64}{"]" * 64}}}}}', "the arguments have more than 64 lists"),
    ],
)
def test_a_fault_says_what_is_wrong_and_what_to_write(raw: str, fault: str) -> None:
    text, (call,) = parse_calls(f"well <tool_call>{raw}</tool_call>", "Hermes")
    assert call.arguments is None and call.fault is not None
    assert call.fault.startswith(fault)
    assert '; write <tool_call>{"name": ..., "arguments": {...}}</tool_call>, not ' in call.fault
    # a model's own words are not repeated without end
    assert len(call.fault) < 600
    # what it wrote stays where it was, for a template to write again
    assert text == f"well <tool_call>{raw}</tool_call>"


def test_parameters_of_tags_have_the_types_of_the_schema() -> None:
    text = """<tool_call>
<function=add>
<parameter=a>
12
</parameter>
<parameter=b>
34
</parameter>
<parameter=c>
two
lines
</parameter>
</function>
</tool_call>"""
    _, (call,) = parse_calls(text, "QwenXML", tools=[tool(a="integer", b="string")])
    assert call.arguments == {"a": 12, "b": "34", "c": "two\nlines"}
    # without a schema, what reads as JSON is that value
    _, (call,) = parse_calls(text, "QwenXML")
    assert call.arguments == {"a": 12, "b": 34, "c": "two\nlines"}


@pytest.mark.parametrize(
    ("raw", "name", "fault"),
    [
        ("add", "", "the call has no <function=name>"),
        ("<function=add><parameter=a>1</function>", "add", "a <parameter=...> is not closed"),
        (f"<function=add><parameter=a>{'[' * 64}{']' * 64}</parameter></function>", "add", "the arguments have more"),
    ],
)
def test_faults_of_tags(raw: str, name: str, fault: str) -> None:
    _, (call,) = parse_calls(f"<tool_call>{raw}</tool_call>", "QwenXML")
    assert (call.name, call.arguments) == (name, None)
    assert call.fault is not None and call.fault.startswith(fault)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', [{"a": 1}]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [{"a": 1}]),
        ('{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}', [{"a": 1}, {"a": 2}]),
        ('{"type": "function", "function": {"name": "add", "parameters": {"a": 3}}}', [{"a": 3}]),
    ],
)
def test_a_turn_that_is_an_object_with_a_name_is_a_call_of_llama(text: str, arguments: list[object]) -> None:
    content, calls = parse_calls(text, "Llama")
    assert content == ""
    assert [call.arguments for call in calls] == arguments


@pytest.mark.parametrize("text", ["3", '{"a": 1}', 'I would call {"name": "add"}'])
def test_other_turns_of_llama_are_text(text: str) -> None:
    assert parse_calls(text, "Llama") == (text, ())


def test_a_call_of_llama_that_breaks_off_has_a_fault() -> None:
    text = '{"name": "add", "parameters": {"a": 1}} {"name": "add", "par'
    content, calls = parse_calls(text, "Llama")
    assert [call.arguments for call in calls] == [{"a": 1}, None]
    assert content == text


@pytest.mark.parametrize("tool_format", ["Hermes", "QwenXML", "Llama"])
def test_faulty_calls_alone_have_a_fault(tool_format: ToolFormat) -> None:
    for text in (CALL, "<tool_call><function=a></function></tool_call>", '{"name": "a"}', '{"name": '):
        for call in parse_calls(text, tool_format)[1]:
            assert (call.fault is None) == (call.arguments is not None)
