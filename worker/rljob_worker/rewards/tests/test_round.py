"""The bookkeeping of a round, without processes: whatever happens to them, every row is known once."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import BadData
from rljob_worker.rewards.round import RewardCall, Round


@dataclass
class Accident:
    """What befalls a chunk: after `finished` of its rows its process is late, or dies."""

    finished: int
    kind: str


accidents = st.builds(Accident, st.integers(0, 6), st.sampled_from(["none", "late", "dies"]))


def play(work, chunk, accident, asynchronous, now, died):
    """Work through a chunk until the accident.  No row ends its process twice: `died` holds those that did once."""
    for row in chunk.rows[: accident.finished]:
        if asynchronous and row not in chunk.running:
            work.started(chunk, row, now)
        work.finished(chunk, row, {"reward": float(row), "metrics": {}}, now)
    if asynchronous and accident.kind != "none":
        for row in list(chunk.waiting)[:3]:
            work.started(chunk, row, now)
    if not chunk.rows:
        return
    if accident.kind == "late":
        work.expired(chunk)
    elif accident.kind == "dies" and died.isdisjoint(suspects := {(chunk.reward, row) for row in chunk.running}):
        died |= suspects
        work.died(chunk, "signal SIGKILL")
    else:
        play(work, chunk, Accident(len(chunk.rows), "none"), asynchronous, now, died)


@given(st.integers(0, 40), st.integers(1, 4), st.booleans(), st.lists(accidents, max_size=30))
def test_every_row_is_known_once(num_rows, processes, asynchronous, fates):
    calls = [RewardCall("a", 5.0, asynchronous), RewardCall("b", 5.0, asynchronous)]
    work = Round(calls, [{"row_id": i} for i in range(num_rows)], processes)
    now, died = 0.0, set()
    while not work.done:
        now += 1
        chunk = work.next_chunk(now)
        assert chunk is not None, "rows are missing and nothing is left to do"
        assert now < work.deadline(chunk)
        play(work, chunk, fates.pop(0) if fates else Accident(99, "none"), asynchronous, now, died)
    assert work.next_chunk(now) is None
    late = {(row.reward, row.row) for row in work.timed_out}
    assert len(late) == len(work.timed_out)
    for index, call in enumerate(calls):
        for row in range(num_rows):
            assert work.rewards[row, index] == (0.0 if (call.name, row) in late else row)


def test_a_plain_rewards_clock_starts_with_each_row():
    work = Round([RewardCall("a", 5.0, False)], [{}] * 8, processes=1)
    chunk = work.next_chunk(now=100.0)
    assert chunk.rows == [0, 1]
    assert work.deadline(chunk) == 105.0
    work.finished(chunk, 0, {"reward": 1.0, "metrics": {}}, now=103.0)
    assert work.deadline(chunk) == 108.0


def test_async_rows_that_stop_a_process_together_run_again_alone():
    work = Round([RewardCall("a", 5.0, True)], [{}] * 3, processes=1)
    chunk = work.next_chunk(now=0.0)
    work.started(chunk, 0, 0.0)
    work.started(chunk, 2, 0.0)
    work.expired(chunk)
    again = [work.next_chunk(1.0).rows for _ in range(3)]
    assert sorted(again) == [[0], [1], [2]]
    assert not work.timed_out


def test_a_row_that_ends_its_process_twice_is_the_users_mistake():
    work = Round([RewardCall("a", 5.0, False)], [{}] * 8, processes=1)
    work.died(work.next_chunk(0.0), "signal SIGKILL")
    chunks = [work.next_chunk(1.0) for _ in range(5)]
    assert [chunk.rows for chunk in chunks] == [[2, 3], [4, 5], [6, 7], [1], [0]], "the suspect alone, and last"
    with pytest.raises(BadData, match=r'^reward "a" on row 0 ended its process twice \(signal SIGKILL\)$'):
        work.died(chunks[-1], "signal SIGKILL")


def test_a_row_is_named_by_its_id_and_source():
    work = Round([RewardCall("style", 5.0, False)], [{"row_id": 123, "source": "gsm8k"}], processes=1)
    chunk = work.next_chunk(0.0)
    with pytest.raises(BadData, match=r'^reward "style" on row 123 \(source gsm8k\) returned None$'):
        work.finished(chunk, 0, {"problem": "returned None"}, 0.0)
