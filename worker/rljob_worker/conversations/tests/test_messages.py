"""Messages as chat templates take them."""

from rljob_worker.conversations.messages import AssistantMessage, ToolCall


def test_a_message_has_only_what_was_said():
    assert AssistantMessage("4").as_message() == {"role": "assistant", "content": "4"}
    call = ToolCall("call_0_0", "add", {"a": 1}, '{"name": "add"}', None)
    broken = ToolCall("call_0_1", "add", None, "{", "these arguments are not JSON")
    message = AssistantMessage("", (call, broken), reasoning="hm").as_message()
    assert message["reasoning_content"] == "hm"
    # what could not be read is in the content as it was written
    assert [part["function"] for part in message["tool_calls"]] == [{"name": "add", "arguments": {"a": 1}}]
    assert "tool_calls" not in AssistantMessage("{", (broken,)).as_message()
