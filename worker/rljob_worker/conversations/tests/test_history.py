import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.conversations.history import History, TurnKind

SAID, CALLED, THOUGHT = TurnKind(False, True, False), TurnKind(False, False, True), TurnKind(True, True, False)
USER = {"role": "user", "content": "u"}
TOOL = {"role": "tool", "content": "t"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{}]}
WORDS = {"role": "assistant", "content": "a"}
THINKS = {"role": "assistant", "content": "<think>t</think>a"}


@pytest.mark.parametrize(
    ("messages", "kinds"),
    [
        ([USER, WORDS], ((), SAID)),
        ([USER, CALL, TOOL, WORDS], ((CALLED,), SAID)),
        # what came before the last user message does not count
        ([USER, THINKS, USER, CALL, TOOL, WORDS], ((CALLED,), SAID)),
        # the latest kind first, each once
        ([USER, THINKS, CALL, TOOL, CALL, TOOL, WORDS], ((CALLED, THOUGHT), SAID)),
        ([USER, CALL, TOOL, THINKS, CALL, TOOL, CALL], ((CALLED, THOUGHT), CALLED)),
        ([USER, {"role": "assistant", "content": " ", "reasoning_content": "r"}], ((), TurnKind(True, False, False))),
    ],
)
def test_kinds_of_turns_since_the_last_user_message(messages, kinds):
    assert History(messages).kinds() == kinds


@given(st.lists(st.sampled_from([USER, TOOL, CALL, WORDS, THINKS]), max_size=12), st.integers(0, 12))
def test_messages_may_come_in_any_portions(messages, place):
    whole, grown = History([*messages, WORDS]), History(messages[:place])
    grown.add([*messages[place:], WORDS])
    assert grown.kinds() == whole.kinds()
    assert grown.messages == whole.messages
