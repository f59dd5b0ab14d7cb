"""What the lead does with a step that all have reported, and in which order."""

import json
from contextlib import closing

import pytest

from rljob_worker.errors import StorageError
from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import mean
from rljob_worker.runtime.control import Verdict
from rljob_worker.runtime.lead.judge import step_words
from rljob_worker.runtime.lead.tests.judging import make_judge, without_validation


class Notes:
    """A committer and an announcer that note what was asked of them, and what was written by then."""

    def __init__(self, folder):
        self.folder, self.said = folder, []

    def commit(self, step, *, score):
        self.said.append(("commit", step, score, self.written()))

    def announce(self, step, verdict):
        self.said.append(("announce", step, verdict, self.written()))

    def written(self):
        """The last step of metrics.jsonl."""
        return [json.loads(line)["step"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()][-1]


@pytest.fixture
def notes(tmp_path):
    return Notes(tmp_path)


def judged(notes, *steps, figures=None, stop_requested=lambda: False, **changes):
    """Steps judged in turn; `figures` are metrics of every one of them."""
    judge = make_judge(notes.folder, committer=notes, stop_requested=stop_requested, **changes)
    metrics = {name: mean(value) for name, value in (figures or {"reward/mean": 0.25}).items()}
    with closing(judge.recorder):
        for step in steps:
            judge.judge(step, StepReport(metrics), notes.announce)
        judge.committing.wait()
    return judge


def test_a_step_is_written_before_it_is_judged_and_the_verdict_does_not_wait_for_the_commit(notes):
    judged(notes, 1, 2, checkpoint={"everySteps": 2})
    assert notes.said == [
        ("announce", 1, Verdict(), 1),
        ("announce", 2, Verdict(), 2),
        ("commit", 2, 0.25, 2),
    ]


def test_the_verdict_on_the_last_step_says_that_all_is_done(notes):
    judged(notes, 1, 2, stop={"steps": 2})
    reached = Verdict(2, cause="reached step 2")
    assert notes.said == [("announce", 1, reached, 1), ("commit", 2, 0.25, 2), ("announce", 2, reached, 2)]


def test_the_validation_before_the_first_step_is_judged_and_not_saved(notes):
    judged(notes, 0, figures={"validation/accuracy": 0.5}, checkpoint={"everySteps": 1})
    assert notes.said == [("announce", 0, Verdict(), 0)]


def test_a_request_to_stop_is_part_of_the_next_verdict_and_stays(notes):
    asked = iter([False, True, False])
    judge = judged(notes, 1, 2, 3, stop_requested=lambda: next(asked))
    stopped = Verdict(3, stopped=True, cause="asked to stop")
    assert [said[:3] for said in notes.said] == [
        ("announce", 1, Verdict()),
        ("announce", 2, stopped),
        ("commit", 3, 0.25),
        ("announce", 3, stopped),
    ]
    assert judge.verdict == stopped


def test_the_delay_says_which_step_is_governed(notes):
    assert judged(notes, 1, delay=3, stop_requested=lambda: True).verdict.last_step == 4


def test_checkpoints_are_scored_by_validation_where_there_is_one(notes):
    figures = {"reward/mean": 0.25, "validation/accuracy": 0.75}
    judged(notes, 1, figures=figures, checkpoint={"everySteps": 1})
    assert ("commit", 1, 0.75, 1) in notes.said


@pytest.mark.parametrize(
    ("changes", "ends"),
    [({}, True), (without_validation(), False)],
    ids=["by validation accuracy", "by mean reward"],
)
def test_the_reward_that_ends_a_job(notes, changes, ends):
    """The limit is 0.6: the accuracy is above it, the mean reward is not."""
    figures = {"reward/mean": 0.5, "validation/accuracy": 0.75}
    judge = judged(notes, 1, figures=figures, stop={"steps": 10, "rewardAbove": 0.6}, **changes)
    assert judge.verdict == (Verdict(2, cause="reward 0.75 is above 0.6") if ends else Verdict())


def test_the_mean_reward_ends_a_job_that_does_not_validate(notes):
    judge = judged(
        notes, 1, figures={"reward/mean": 0.7}, stop={"steps": 10, "rewardAbove": 0.6}, **without_validation()
    )
    assert judge.verdict == Verdict(2, cause="reward 0.7 is above 0.6")


def test_a_job_that_validates_waits_for_a_step_with_a_validation(notes):
    judge = judged(notes, 1, figures={"reward/mean": 0.9}, stop={"steps": 10, "rewardAbove": 0.6})
    assert judge.verdict == Verdict()


def test_seconds_of_running_end_a_job(notes):
    judge = judged(notes, 1, stop={"steps": 10, "activeSeconds": 1}, clock=iter([0.0, 7.0, 8.0]).__next__)
    assert judge.verdict == Verdict(2, cause="active for 7 s")


def test_without_shared_storage_nothing_is_committed(notes):
    judged(notes, 1, 2, stop={"steps": 2}, keeps_checkpoints=False, checkpoint={"everySteps": 1})
    assert [said[0] for said in notes.said] == ["announce", "announce"]


def test_a_commit_is_reported_where_progress_is_asked_for(notes):
    sent = []
    judged(notes, 1, checkpoint={"everySteps": 1}, send=sent.append)
    assert [progress.get("checkpointStep") for progress in sent] == [None, 1]


def test_a_commit_that_fails_is_no_last_word(notes):
    def fail(step, *, score):
        raise StorageError("disk full")

    notes.commit = fail
    with pytest.raises(StorageError, match="disk full"):
        judged(notes, 1, stop={"steps": 1})
    assert notes.said == []


def test_a_step_is_one_line_with_the_figures_it_has(notes, caplog):
    metrics = {"reward/mean": 0.212345, "time/step_seconds": 1.3, "data/bytes_total": 7.0}
    assert step_words(3, 40, metrics) == "step 3/40: reward 0.2123, seconds 1.3"
    everything = {
        "time/step_seconds": 7.0, "throughput/tokens_per_second": 6.0, "response_length/mean": 5.0, "kl/reference": 4.0,
        "loss/policy": 3.0, "validation/accuracy": 2.0, "reward/mean": 1.0,
    }  # fmt: skip
    words = "reward 1, validation 2, loss 3, kl 4, length 5, tokens/s 6, seconds 7"
    assert step_words(1, 2, everything) == f"step 1/2: {words}"
    with caplog.at_level("INFO"):
        judged(notes, 1)
    assert "step 1/10: reward 0.25" in caplog.messages
