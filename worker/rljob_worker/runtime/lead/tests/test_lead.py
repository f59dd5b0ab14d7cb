"""The lead's two threads: what one reports the other judges, and what breaks in either ends both."""

import contextlib
import json
import threading
from types import SimpleNamespace

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import DeadlineExceeded, PeerLost, StorageError
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.scalars import mean
from rljob_worker.metrics.trackers import trackers
from rljob_worker.runtime.control import Opening, Verdict, said
from rljob_worker.runtime.joining import reported_failure
from rljob_worker.runtime.lead.lead import Lead
from rljob_worker.runtime.lead.tests.judging import make_judge
from rljob_worker.runtime.tests.control_channel import FakeControlChannel
from rljob_worker.tests.waiting import wait_for

REPORT = StepReport({"reward/mean": mean(0.25)})


class Committer:
    """Notes steps; `hold` and `error` are for tests."""

    def __init__(self):
        self.committed, self.begun = [], threading.Event()
        self.hold, self.error = threading.Event(), None
        self.hold.set()

    def commit(self, step, *, score):
        self.begun.set()
        self.hold.wait(TEST_TIMEOUT_SECONDS)
        if self.error is not None:
            raise self.error
        self.committed.append(step)


@pytest.fixture
def committer():
    return Committer()


@pytest.fixture
def make_lead(tmp_path, committer):
    judges = []

    def make(channel, ordinal=0, opening=Opening(0, None), **changes):  # noqa: B008 (frozen)
        judges.append(make_judge(tmp_path, committer=committer, **changes))
        return Lead(channel.end(ordinal), ordinal, opening, judges[-1])

    yield make
    for judge in judges:
        judge.recorder.close()


def is_judging():
    return any(thread.name == "lead" for thread in threading.enumerate())


def steps_in(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_everybody_learns_where_the_job_goes_on(make_lead):
    channel = FakeControlChannel(1)
    opening = Opening(4, "somewhere")
    assert make_lead(channel, opening=opening).open() == opening
    assert channel.announced == {("opening", 0): said(opening)}


def test_steps_are_judged_while_the_lead_goes_on(make_lead, committer, tmp_path):
    channel = FakeControlChannel(2)
    lead = make_lead(channel, 1, stop={"steps": 2})
    with lead.attend(0, 0.0):
        lead.report(1, REPORT)
        assert channel.announced == {}  # the other worker is late, and nobody waits
        lead.report(2, REPORT)
        for step in (1, 2):
            channel.end(0).report(step, report_to_bytes(StepReport({"reward/mean": mean(0.75)}), 0))
        assert lead.verdict(2) == Verdict(2, cause="reached step 2")
        assert committer.committed == [2]
    assert not is_judging()
    assert (
        channel.announced["verdict", 1] == channel.announced["verdict", 2] == said(Verdict(2, cause="reached step 2"))
    )
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["reward/mean"]) for line in written] == [(1, 0.5), (2, 0.5)]


def test_a_verdict_is_waited_for_but_not_the_commit_of_its_step(make_lead, committer):
    channel = FakeControlChannel(1)
    lead = make_lead(channel, checkpoint={"everySteps": 1})
    committer.hold.clear()
    with lead.attend(0, 0.0):
        lead.report(1, REPORT)
        assert lead.verdict(1) == Verdict()
        assert committer.begun.wait(TEST_TIMEOUT_SECONDS) and committer.committed == []
        committer.hold.set()
    assert committer.committed == [1]


def test_the_last_verdict_comes_after_the_commit(make_lead, committer):
    channel = FakeControlChannel(1)
    lead = make_lead(channel, stop={"steps": 1})
    committer.hold.clear()
    with lead.attend(0, 0.0):
        lead.report(1, REPORT)
        assert committer.begun.wait(TEST_TIMEOUT_SECONDS) and channel.announced == {}
        committer.hold.set()
        assert lead.verdict(1).last_step == 1
        assert committer.committed == [1]


class NotifiedTracker:
    def __init__(self):
        self.times = 0

    def fail(self):
        self.times += 1


def test_an_error_is_reported_once_everything_else_has_been_let_go_of():
    control, let_go = NotifiedTracker(), []
    with pytest.raises(PeerLost), reported_failure() as controls, contextlib.ExitStack() as rest:
        rest.callback(lambda: let_go.append(control.times))
        controls.append(control)
        raise PeerLost("gone")
    assert (let_go, control.times) == ([0], 1)
    with reported_failure() as controls:
        controls.append(control)
    assert control.times == 1


def test_a_lead_that_fails_tells_those_who_follow_the_run(make_lead, monkeypatch):
    tracker = NotifiedTracker()
    monkeypatch.setattr(
        trackers, "open_tracker", lambda name, run: SimpleNamespace(close=lambda failed=False: tracker.fail())
    )
    lead = make_lead(FakeControlChannel(1))
    lead.fail()
    assert tracker.times == 1


def test_a_run_goes_on_with_its_files_and_its_seconds(make_lead, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    ticks = iter([10.0, 12.0])
    lead = make_lead(FakeControlChannel(1), clock=ticks.__next__)
    with lead.attend(2, 60.0):
        assert lead.active_seconds == 62.0  # 60 of earlier attempts, 2 of this one
    assert steps_in(tmp_path) == [1, 2]
    with pytest.raises(ValueError, match="closed file"):
        lead.judge.recorder.record(3, REPORT)


def test_a_late_worker_is_named_where_the_lead_next_asks(make_lead, tmp_path):
    channel = FakeControlChannel(2, timeout_seconds=0.05)
    lead = make_lead(channel)
    with pytest.raises(DeadlineExceeded, match="step 1: worker 1 is late"), lead.attend(0, 0.0):
        lead.report(1, REPORT)
        lead.verdict(1)
    wait_for(lambda: not is_judging())
    assert steps_in(tmp_path) == []


def test_an_error_of_a_commit_is_raised_although_the_verdict_is_there(make_lead, committer):
    committer.error = StorageError("disk full")
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    with pytest.raises(StorageError) as raised, lead.attend(0, 0.0):
        lead.report(1, REPORT)
        wait_for(lambda: lead.judge.committing.error)
        lead.verdict(1)
    assert raised.value is committer.error
    with pytest.raises(StorageError):
        lead.report(2, REPORT)


def test_a_step_is_not_reported_once_judging_has_failed(make_lead, committer):
    committer.error = RuntimeError("a bug")
    channel = FakeControlChannel(1)
    lead = make_lead(channel, checkpoint={"everySteps": 1})
    with pytest.raises(RuntimeError, match="a bug"), lead.attend(0, 0.0):
        lead.report(1, REPORT)
        wait_for(lambda: lead.judge.committing.error)
        lead.report(2, REPORT)
    channel.end(0).report(2, b"")  # there is none yet, else the channel would object


def test_of_two_errors_the_first_is_raised(make_lead, committer):
    committer.error = StorageError("disk full")
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    with pytest.raises(StorageError) as raised, lead.attend(0, 0.0):
        lead.report(1, REPORT)
        wait_for(lambda: lead.judge.committing.error)
        raise PeerLost("an echo")
    assert raised.value is committer.error
    assert isinstance(raised.value.__cause__, PeerLost)


@pytest.mark.parametrize("error", [PeerLost("gone"), KeyboardInterrupt()])
def test_an_error_of_a_step_is_not_hidden_and_nothing_is_written_after_it(make_lead, tmp_path, error, monkeypatch):
    monkeypatch.setattr("rljob_worker.runtime.lead.lead.FINISHING_SECONDS", 0.01)
    channel = FakeControlChannel(1)
    channel.hold("collect", 1)
    lead = make_lead(channel)
    with pytest.raises(type(error)) as raised, lead.attend(0, 0.0):
        lead.report(1, REPORT)
        lead.report(2, REPORT)
        raise error
    assert raised.value is error
    channel.let_go("collect", 1)
    wait_for(lambda: not is_judging())
    assert steps_in(tmp_path) == [] and channel.announced == {}


def test_whoever_interrupts_is_obeyed_whatever_broke_before(make_lead, committer):
    committer.error = StorageError("disk full")
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    with pytest.raises(KeyboardInterrupt), lead.attend(0, 0.0):
        lead.report(1, REPORT)
        wait_for(lambda: lead.judge.committing.error)
        raise KeyboardInterrupt


def test_what_all_have_reported_is_committed_before_an_error_is_raised(make_lead, committer):
    channel = FakeControlChannel(2)
    lead = make_lead(channel, checkpoint={"everySteps": 1})
    with pytest.raises(PeerLost, match="gone"), lead.attend(0, 0.0):
        for step in (1, 2):
            lead.report(step, REPORT)
            channel.end(1).report(step, report_to_bytes(REPORT, 1))
        raise PeerLost("gone")
    assert committer.committed == [1, 2]
    assert not is_judging()


def test_a_commit_that_has_begun_is_finished_before_an_error_is_raised(make_lead, committer, monkeypatch):
    monkeypatch.setattr("rljob_worker.runtime.lead.lead.FINISHING_SECONDS", 0.01)
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    committer.hold.clear()
    seen = []

    def fail():
        with lead.attend(0, 0.0):
            lead.report(1, REPORT)
            assert committer.begun.wait(TEST_TIMEOUT_SECONDS)
            raise PeerLost("gone")

    def note():
        try:
            fail()
        except PeerLost:
            seen.append(list(committer.committed))

    failing = threading.Thread(target=note)
    failing.start()
    wait_for(lambda: lead.left)
    assert seen == []
    committer.hold.set()
    failing.join(TEST_TIMEOUT_SECONDS)
    assert seen == [[1]]


def test_a_disk_that_hangs_does_not_keep_a_lead_that_failed(make_lead, committer, monkeypatch):
    for name in ("FINISHING_SECONDS", "WRITE_GRACE_SECONDS"):
        monkeypatch.setattr(f"rljob_worker.runtime.lead.lead.{name}", 0.01)
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    committer.hold.clear()
    with pytest.raises(PeerLost, match="gone"), lead.attend(0, 0.0):
        lead.report(1, REPORT)
        assert committer.begun.wait(TEST_TIMEOUT_SECONDS)
        raise PeerLost("gone")
    assert committer.committed == []
    committer.hold.set()
    wait_for(lambda: not is_judging())


def test_an_error_that_comes_after_the_first_is_an_echo(make_lead, committer, monkeypatch):
    """The commit fails while the lead waits for it to finish, because of what the lead failed by."""
    monkeypatch.setattr("rljob_worker.runtime.lead.lead.FINISHING_SECONDS", 0.01)
    lead = make_lead(FakeControlChannel(1), checkpoint={"everySteps": 1})
    committer.hold.clear()
    committer.error = StorageError("an echo")
    threading.Thread(target=lambda: wait_for(lambda: lead.left) and committer.hold.set()).start()
    with pytest.raises(PeerLost, match="gone"), lead.attend(0, 0.0):
        lead.report(1, REPORT)
        assert committer.begun.wait(TEST_TIMEOUT_SECONDS)
        raise PeerLost("gone")
    wait_for(lambda: not is_judging())
