"""What the lead works out from the figures of all workers."""

import pytest

from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import total
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.runtime.lead.recorder import Recorder, derived, of_whole_job


def test_derived_metrics():
    """Rewards 0, 0, 0, 1: mean 1/4, mean square 1/4, so the spread is sqrt(1/4 - 1/16) = 0.4330."""
    result = derived(
        {
            "reward/mean": 0.25,
            "reward/square_mean": 0.25,
            "policy/clip_fraction_low": 0.125,
            "policy/clip_fraction_high": 0.25,
        }
    )
    assert result["reward/std"] == pytest.approx(0.4330, abs=1e-4) and "reward/square_mean" not in result
    assert result["policy/clip_fraction"] == 0.375


def test_metrics_of_the_whole_job():
    moved = {"time/step_seconds": 2.0, "data/bytes_rollout->reward": 40, "data/bytes_metrics": 2}
    alone = of_whole_job({"tokens/total": 600, "reward/mean": 0.25, **moved}, [])
    assert alone["throughput/tokens_per_second"] == 300 and alone["reward/mean"] == 0.25
    assert alone["data/bytes_total"] == 42
    # of several policies: (0.25 + 0.75) / 2, and 100 + 500 tokens in 2 seconds
    policies = [
        {"tokens/total": 100, "reward/mean": 0.25, "loss/policy": 1.0},
        {"tokens/total": 500, "reward/mean": 0.75},
    ]
    several = of_whole_job(moved, policies)
    assert several["throughput/tokens_per_second"] == 300 and several["reward/mean"] == 0.5
    assert "validation/accuracy" not in several and "loss/policy" not in several


def test_nothing_is_derived_from_what_is_not_there():
    assert derived({"reward/mean": 0.25}) == {"reward/mean": 0.25}
    assert of_whole_job({"reward/mean": 0.25}, []) == {"reward/mean": 0.25, "data/bytes_total": 0}


class Sent:
    """Keeps what a reporter would send."""

    def __init__(self):
        self.counts, self.warnings = [], []

    def send(self, *, metrics, progress):
        self.counts.append(metrics["health/warnings"])
        self.warnings.append(progress["warnings"])


def test_what_keeps_a_policy_from_learning_is_in_the_progress_and_counted(tmp_path, caplog):
    sent = Sent()
    recorder = Recorder(RunFiles(tmp_path), sent, total_steps=9, attempt=1)
    metrics = {"reward/mean": total(0.0), "reward/zero_variance_groups": total(1.0)}
    written = [recorder.record(step, StepReport(metrics=metrics)) for step in (1, 2, 3)]
    recorder.close()
    assert sent.counts == [0, 0, 1], "three steps tell"
    assert [len(warnings) for warnings in sent.warnings] == sent.counts
    assert sent.warnings[-1][0].startswith("GroupsAlike: step 3: in 100% of groups")
    assert not any("health/warnings" in step for step in written), (
        "a run's own metrics do not depend on how long it took"
    )
    again = Recorder(RunFiles(tmp_path), sent, total_steps=9, attempt=2)
    again.resume_from(2, 0.0)
    again.record(3, StepReport(metrics=metrics))
    again.close()
    assert sent.counts[-1] == 1, "as if it had not been interrupted"
    assert caplog.messages[:1] == [sent.warnings[-1][0].removeprefix("GroupsAlike: ")]
