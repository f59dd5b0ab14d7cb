"""The bookkeeping of a round, without processes: whatever happens to them, every row is known once."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import BadData
from rljob_worker.rewards.running.chunks import RewardCall
from rljob_worker.rewards.running.round import Round


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
        work.expired(chunk, now)
    elif accident.kind == "dies" and died.isdisjoint(suspects := {(chunk.reward, row) for row in chunk.running}):
        died |= suspects
        work.died(chunk, "signal SIGKILL", now)
    else:
        play(work, chunk, Accident(len(chunk.rows), "none"), asynchronous, now, died)


def round_of(calls, rows, processes=1):
    work = Round(calls, processes)
    work.add(rows)
    return work


@given(
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 4),
    st.booleans(),
    st.lists(accidents, max_size=30),
    st.randoms(use_true_random=False),
)
def test_every_row_is_known_once(parts, processes, asynchronous, fates, chance):
    calls = [RewardCall("a", 5.0, asynchronous), RewardCall("b", 5.0, asynchronous)]
    work, num_rows = Round(calls, processes), sum(parts)
    coming = [[{"row_id": sum(parts[:i]) + j} for j in range(part)] for i, part in enumerate(parts)]
    now, died = 0.0, set()
    while coming or not work.done:
        now += 1
        if coming and (work.done or chance.random() < 0.5):
            work.add(coming.pop(0))
            continue
        chunk = work.next_chunk(now)
        assert chunk is not None, "rows are missing and nothing is left to do"
        if coming:
            work.add(coming.pop(0))
        before = set(chunk.rows)
        more = work.more_for(chunk, now)
        assert before.isdisjoint(more) and set(chunk.rows) == before | set(more)
        assert now < work.deadline(chunk)
        play(work, chunk, fates.pop(0) if fates else Accident(99, "none"), asynchronous, now, died)
    assert work.next_chunk(now) is None
    order = chance.sample(range(num_rows), num_rows)
    timed_out, rewards = work.missed(order), work.rewards(order)
    late = {(row.reward, row.row) for row in timed_out}
    assert len(late) == len(timed_out) and rewards.shape == (num_rows, 2)
    assert all(item.message.endswith(f" on row {order[item.row] + 1}") for item in timed_out)
    assert [(item.row, item.reward) for item in timed_out] == sorted((item.row, item.reward) for item in timed_out)
    for index, call in enumerate(calls):
        for at, row in enumerate(order):
            assert rewards[at, index] == (0.0 if (call.name, at) in late else row)


def test_a_plain_rewards_clock_starts_with_each_row():
    work = round_of([RewardCall("a", 5.0, False)], [{}] * 8)
    chunk = work.next_chunk(now=100.0)
    assert chunk.rows == [0, 1]
    assert work.deadline(chunk) == 105.0
    work.finished(chunk, 0, {"reward": 1.0, "metrics": {}}, now=103.0)
    assert work.deadline(chunk) == 108.0


def test_async_rows_that_stop_a_process_together_run_again_alone():
    work = round_of([RewardCall("a", 5.0, True)], [{}] * 3)
    chunk = work.next_chunk(now=0.0)
    work.started(chunk, 0, 0.0)
    work.started(chunk, 2, 0.0)
    work.expired(chunk, 5.0)
    again = [work.next_chunk(1.0).rows for _ in range(3)]
    assert sorted(again) == [[0], [1], [2]]
    assert not work.missed(range(3))


def test_a_row_that_ends_its_process_twice_is_the_users_mistake():
    work = round_of([RewardCall("a", 5.0, False)], [{}] * 8)
    work.died(work.next_chunk(0.0), "signal SIGKILL", 0.0)
    chunks = [work.next_chunk(1.0) for _ in range(5)]
    assert [chunk.rows for chunk in chunks] == [[2, 3], [4, 5], [6, 7], [1], [0]], "the suspect alone, and last"
    with pytest.raises(BadData, match=r'^reward "a" on row 1 ended its process twice \(signal SIGKILL\)$'):
        work.died(chunks[-1], "signal SIGKILL", 1.0)


def test_a_row_is_named_by_its_id_and_source():
    work = round_of([RewardCall("style", 5.0, False)], [{"row_id": 123, "source": "gsm8k"}])
    chunk = work.next_chunk(0.0)
    with pytest.raises(BadData, match=r'^reward "style" on row 124 \(source gsm8k\) returned None$'):
        work.finished(chunk, 0, {"problem": "returned None"}, 0.0)


def test_a_process_on_an_async_reward_takes_more_of_it_and_only_of_it():
    work = round_of([RewardCall("a", 5.0, True), RewardCall("b", 5.0, True)], [{}])
    chunk = work.next_chunk(now=0.0)
    assert work.more_for(chunk, now=1.0) == [], "reward b waits for a process that is on no other"
    work.add([{}] * 70)
    assert work.more_for(chunk, now=7.0) == list(range(1, 65)), "a piece more, and no other when it has enough"
    assert work.deadline(chunk) == 7.0 + 5.0 + 2.0, "its clock has not stood since the first rows came"
    assert work.more_for(chunk, now=7.0) == []


def test_a_suspect_shares_its_process_with_nobody():
    work = round_of([RewardCall("a", 5.0, True)], [{}] * 2, processes=2)
    chunk, other = work.next_chunk(0.0), work.next_chunk(0.0)
    work.started(chunk, 0, 0.0)
    work.died(chunk, "signal SIGKILL", 1.0)
    assert work.more_for(other, 1.0) == [] and other.rows == [1]
    work.add([{}])
    alone = work.next_chunk(1.0)
    assert alone.rows == [0] and work.more_for(alone, 1.0) == []
    work.started(alone, 0, 1.0)
    with pytest.raises(BadData, match="ended its process twice"):
        work.died(alone, "signal SIGKILL", 1.0)


def test_a_plain_rewards_process_takes_no_more():
    work = round_of([RewardCall("a", 5.0, False)], [{}])
    chunk = work.next_chunk(now=0.0)
    work.add([{}])
    assert work.more_for(chunk, now=1.0) == []


PROBLEM = {"problem": "raised ConnectionError"}


def test_a_call_that_is_made_again_waits_twice_as_long_each_time_and_others_go_on():
    work = round_of([RewardCall("judge", 5.0, False, "Retry", retries=2, backoff_seconds=4.0)], [{}])
    work.finished(work.next_chunk(10.0), 0, PROBLEM, 10.0)
    assert work.due == 14.0 and work.next_chunk(13.9) is None and not work.done
    work.add([{}])
    assert work.next_chunk(13.9).rows == [1]
    work.finished(work.next_chunk(14.0), 0, PROBLEM, 15.0)
    assert work.due == 23.0  # 15 + 2 x 4
    last = work.next_chunk(23.0)
    with pytest.raises(BadData, match="on row 1 raised ConnectionError; it was called 3 times"):
        work.finished(last, 0, PROBLEM, 24.0)


def test_a_call_that_succeeds_at_last_leaves_no_trace_but_a_count():
    work = round_of([RewardCall("judge", 5.0, True, "Retry", retries=1)], [{}])
    chunk = work.next_chunk(0.0)
    work.started(chunk, 0, 0.0)
    work.finished(chunk, 0, PROBLEM, 0.0)
    again = work.next_chunk(1.0)
    work.started(again, 0, 1.0)
    work.finished(again, 0, {"reward": 0.5, "metrics": {}}, 1.0)
    assert work.done and work.rewards([0]).tolist() == [[0.5]]
    assert work.missed([0]) == () and work.num_retries() == {"judge": 1}


@pytest.mark.parametrize(("failed", "seconds"), [(1, 2.0), (5, 32.0), (6, 60.0), (100, 60.0)])
def test_waits_end_at_a_minute(failed, seconds):
    assert RewardCall("judge", 5.0, False, "Retry", 200, 2.0).wait_seconds(failed) == seconds


def test_a_failure_that_is_to_be_zero_is_counted():
    work = round_of([RewardCall("judge", 5.0, False, "Zero")], [{"row_id": 7}])
    chunk = work.next_chunk(0.0)
    work.finished(chunk, 0, PROBLEM, 0.0)
    (missed,) = work.missed([0])
    assert (missed.kind, missed.message) == ("errors", 'reward "judge" on row 8 raised ConnectionError')
    assert work.done and work.rewards([0]).tolist() == [[0.0]]
