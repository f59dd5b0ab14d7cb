"""One link and the inbox at its other end, without sockets: what is sent, when, and what is heard of it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.links.link import Link, LinkLost, MessageReceiver, StartCall, Wait, size_of
from rljob_worker.databuffer.protocol.errors import Bug, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import Down, Envelope, PeerMessage, RowsTaken, SourceClosed
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import BadData, RLJobError

A = Host("a", 0)


def message(number: int) -> PeerMessage:
    return RowsTaken("a->b", number, ())


def steps_of(envelope: Envelope) -> list[int]:
    return [m.step for m in envelope.messages if isinstance(m, RowsTaken)]


def carry(link: Link, now: float) -> list[int]:
    """One call that succeeds: the steps it carried."""
    envelope, _ = link.envelope(0.0)
    link.carried(now)
    return steps_of(envelope)


def test_what_is_sent_while_a_call_is_under_way_goes_with_the_next():
    link = Link()
    assert link.send(message(0)) == StartCall(suspect=False)
    assert link.send(message(1)) is None
    envelope, _ = link.envelope(0.0)
    assert (envelope.first, steps_of(envelope)) == (0, [0, 1])
    assert link.send(message(2)) is None and not link.is_drained
    assert link.carried(1.0) == StartCall(suspect=False)
    envelope, _ = link.envelope(0.0)
    assert (envelope.first, steps_of(envelope)) == (2, [2])
    assert link.carried(2.0) is None and link.is_drained
    assert link.send(message(3)) == StartCall(suspect=False)
    assert link.envelope(0.0)[0].first == 3


def test_an_envelope_holds_512_messages_or_a_mebibyte_but_always_one():
    link = Link()
    for number in range(513):
        link.send(message(number))
    assert len(link.envelope(0.0)[0].messages) == 512
    link = Link()
    half = Down("metrics", 1, bytes((1 << 19) - 64 - len("metrics")))
    assert size_of(half) == 1 << 19
    for _ in range(3):
        link.send(half)
    envelope, num_bytes = link.envelope(0.0)
    assert len(envelope.messages) == 2 and num_bytes == 1 << 20
    link.carried(0.0)
    link.send(Down("metrics", 2, bytes(5 << 20)))
    link.envelope(0.0)
    link.carried(0.0)
    envelope, num_bytes = link.envelope(0.0)
    assert [m.step for m in envelope.messages if isinstance(m, Down)] == [2] and num_bytes == (5 << 20) + 64 + 7


def test_retries_come_after_50_ms_growing_to_half_a_second_and_start_again_after_a_success():
    link = Link()
    link.send(message(0))
    waits = []
    for _ in range(6):
        waits.append(link.failed(1.0, 100.0, timed_out=False))
        assert link.due() == StartCall(suspect=False)
    assert waits == [Wait(0.05), Wait(0.1), Wait(0.2), Wait(0.4), Wait(0.5), Wait(0.5)]
    assert carry(link, 2.0) == [0]
    link.send(message(1))
    assert link.failed(3.0, 100.0, timed_out=False) == Wait(0.05)


def test_a_call_that_ran_out_of_time_makes_the_next_one_suspect_until_one_is_answered():
    link = Link()
    link.send(message(0))
    link.failed(1.0, 100.0, timed_out=True)
    assert link.due() == StartCall(suspect=True)
    link.failed(2.0, 100.0, timed_out=False)
    assert link.due() == StartCall(suspect=False)
    link.failed(3.0, 100.0, timed_out=True)
    link.due()
    link.send(message(1))
    assert carry(link, 4.0) == [0, 1]
    assert link.send(message(2)) == StartCall(suspect=False)


def test_a_peer_is_lost_when_it_has_been_away_for_its_window():
    link = Link()
    link.send(message(0))
    assert link.failed(10.0, 5.0, timed_out=False) == Wait(0.05)
    link.due()
    assert link.failed(14.9, 5.0, timed_out=False) == Wait(0.1)
    link.due()
    assert link.failed(15.0, 5.0, timed_out=False) == LinkLost(10.0)
    assert link.is_over and link.is_drained
    assert link.send(message(1)) is None and link.is_drained
    assert link.due() is None and link.carried(16.0) is None and link.failed(99.0, 5.0, timed_out=False) is None


def test_a_success_ends_the_time_away():
    link = Link()
    link.send(message(0))
    link.failed(10.0, 5.0, timed_out=False)
    link.due()
    assert carry(link, 11.0) == [0]
    link.send(message(1))
    link.envelope(15.9)
    assert link.failed(16.0, 5.0, timed_out=False) == Wait(0.05)
    link.due()
    link.envelope(20.9)
    assert link.failed(21.0, 5.0, timed_out=False) == LinkLost(16.0)


def test_a_peer_that_comes_back_during_a_call_gets_one_more_call():
    link = Link()
    link.hear(0.0)
    link.send(message(0))
    link.envelope(10.0)
    assert link.failed(10.0, 5.0, timed_out=True) == Wait(0.05)
    link.due()
    link.envelope(10.1)
    link.hear(15.0)  # it called while ours was under way
    assert link.failed(15.1, 5.0, timed_out=True) == Wait(0.1)
    link.due()
    link.envelope(15.2)
    link.hear(15.5)  # it speaks, and still does not hear
    assert link.failed(15.7, 5.0, timed_out=True) == LinkLost(10.0)


def test_a_peer_heard_before_a_call_began_is_lost_with_it():
    link = Link()
    link.send(message(0))
    link.failed(10.0, 5.0, timed_out=True)
    link.due()
    link.hear(15.0)
    link.envelope(15.0)
    assert link.failed(15.5, 5.0, timed_out=True) == LinkLost(10.0)


def test_a_silent_peer_is_called_with_an_empty_envelope_after_two_seconds():
    link = Link()
    assert link.look_after(0.0) == StartCall(suspect=False)
    assert link.look_after(0.0) is None
    assert link.envelope(0.0)[0] == Envelope(0, ())
    assert link.carried(1.0) is None and link.heard == 1.0
    assert link.look_after(2.9) is None
    link.hear(2.5)
    assert link.look_after(4.4) is None
    assert link.look_after(4.5) == StartCall(suspect=False)


def test_a_peer_that_left_gets_what_it_still_takes_and_is_never_lost():
    link = Link()
    link.send(message(0))
    link.leave()
    assert carry(link, 1.0) == [0]
    assert link.look_after(100.0) is None
    assert link.send(message(1)) == StartCall(suspect=False)
    assert link.failed(200.0, 0.0, timed_out=False) is None
    assert link.is_over and link.is_drained


# ---- the inbox


def listening(
    fails: Callable[[Host, RLJobError], None] = lambda sender, error: None,
) -> tuple[MessageReceiver, list[int]]:
    heard: list[int] = []

    def hear(sender: Host, said: PeerMessage) -> None:
        assert isinstance(said, RowsTaken)
        heard.append(said.step)

    return MessageReceiver(hear, fails), heard


def envelope_of(first: int, count: int) -> Envelope:
    return Envelope(first, tuple(message(number) for number in range(first, first + count)))


def test_what_was_had_is_dropped_and_what_is_missing_is_refused():
    inbox, heard = listening()
    inbox.take(A, "life", envelope_of(0, 2))
    inbox.take(A, "life", envelope_of(0, 2))
    inbox.take(A, "life", envelope_of(1, 3))
    inbox.take(A, "life", Envelope(4, ()))
    assert heard == [0, 1, 2, 3]
    with pytest.raises(Malformed, match="of host a-0 begins with message 5, expected is 4"):
        inbox.take(A, "life", envelope_of(5, 1))
    with pytest.raises(Malformed, match="begins with message -1"):
        inbox.take(A, "life", Envelope(-1, (message(0),)))
    inbox.take(Host("a", 1), "life", envelope_of(0, 1))
    assert heard == [0, 1, 2, 3, 0]


def test_another_process_of_the_same_name_is_refused():
    inbox, heard = listening()
    inbox.take(A, "life", envelope_of(0, 1))
    with pytest.raises(Refused, match="host a-0 has restarted, and the rows it held are lost"):
        inbox.take(A, "another", envelope_of(0, 1))
    assert heard == [0]


@pytest.mark.parametrize(
    "raised, kind, words",
    [
        (BadData("too wide"), BadData, "RowsTaken from host a-0, edge a->b, step 1: too wide"),
        (KeyError("c"), Bug, r"RowsTaken from host a-0, edge a->b, step 1: KeyError\('c'\)"),
        (AssertionError("no"), Bug, r"step 1: AssertionError\('no'\)"),
    ],
)
def test_what_a_handler_raises_is_told_by_name_and_the_sender_goes_on(raised: Exception, kind: type, words: str):
    failed: list[RLJobError] = []
    heard: list[PeerMessage] = []

    def hear(sender: Host, said: PeerMessage) -> None:
        heard.append(said)
        if said == message(1):
            raise raised

    inbox = MessageReceiver(hear, lambda sender, error: failed.append(error))
    inbox.take(A, "life", envelope_of(0, 3))
    inbox.take(A, "life", envelope_of(0, 3))
    assert heard == [message(0), message(1), message(2)]
    (error,) = failed
    with pytest.raises(kind, match=words):
        raise error


def test_a_message_is_named_by_what_it_is_about():
    failed: list[RLJobError] = []

    def hear(sender: Host, said: PeerMessage) -> None:
        raise BadData("no")

    inbox = MessageReceiver(hear, lambda sender, error: failed.append(error))
    inbox.take(A, "life", Envelope(0, (Down("verdict", 7, b""), SourceClosed("weights", 3, 0, 1))))
    assert [str(error) for error in failed] == [
        "Down from host a-0, topic verdict, step 7: no",
        "SourceClosed from host a-0, edge weights, version 3: no",
    ]


# ---- both together

EVENTS = st.sampled_from(["send", "carried", "not carried", "carried but not answered", "late copy", "watch", "due"])


@given(st.lists(EVENTS, max_size=60), st.integers(1, 4))
def test_every_message_is_heard_once_and_in_order_whatever_fails(events: list[str], burst: int):
    link, sent, now = Link(), 0, 0.0
    inbox, heard = listening()
    called: list[Envelope] = []
    under_way = False
    for event in [*events, *["send", *["due", "carried"] * 3]]:
        now += 1.0
        effect = None
        if event == "send":
            for _ in range(burst):
                effect = link.send(message(sent)) or effect
                sent += 1
        elif event == "watch":
            effect = link.look_after(now)
        elif event == "due":
            effect = link.due()
        elif event == "late copy" and called:
            inbox.take(A, "life", called[0])
        elif under_way and event == "carried":
            inbox.take(A, "life", called[-1])
            under_way, effect = False, link.carried(now)
        elif under_way and event != "late copy":
            if event == "carried but not answered":
                inbox.take(A, "life", called[-1])
            under_way, effect = False, link.failed(now, 1e9, timed_out=event != "not carried")
        if isinstance(effect, StartCall):
            assert not under_way, "at most one call"
            under_way = True
            called.append(link.envelope(0.0)[0])
    assert heard == list(range(sent)) and link.is_drained
