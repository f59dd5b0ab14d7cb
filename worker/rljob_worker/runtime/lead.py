"""The lead worker: rank 0 of the group that updates the first policy. Collects, decides, writes, commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.checkpoint.writer import Committer
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.runtime.control import Control, Opening, Verdict, decide
from rljob_worker.runtime.environment import WorkerEnvironment
from rljob_worker.runtime.recorder import Recorder, score_of

log = logging.getLogger(__name__)

_WORDS = {
    "reward/mean": "reward",
    "validation/accuracy": "validation",
    "loss/policy": "loss",
    "kl/reference": "kl",
    "response_length/mean": "length",
    "throughput/tokens_per_second": "tokens/s",
    "time/step_seconds": "seconds",
}


@dataclass
class Lead:
    """Not in charge during a step: it speaks once, when every worker has reported."""

    spec: RLJobSpec
    control: Control
    recorder: Recorder
    committer: Committer
    keeps_checkpoints: bool = True
    metrics: dict[str, float] = field(default_factory=dict)

    def open(self, opening: Opening) -> None:
        """Tell every worker where the job goes on."""
        self.control.announce(0, opening)

    def judge(self, step: int, *, was_announced_last: bool) -> Verdict:
        """Collect the step's reports, write them down, decide, and tell everyone."""
        reports = self.control.collect(step)
        self.metrics = self.recorder.record(step, reports)
        log.info("%s", step_words(step, self.spec.stop.steps, self.metrics))
        verdict = decide(
            step,
            stop=self.spec.stop,
            checkpoint=self.spec.checkpoint,
            was_announced_last=was_announced_last,
            stop_requested=any(report.stop_requested for report in reports),
            reward=self._reward(),
            elapsed_seconds=self.recorder.active_seconds,
        )
        if not self.keeps_checkpoints:
            verdict = replace(verdict, checkpoint=False)
        self.control.announce(step + 1, verdict)
        return verdict

    def commit(self, step: int) -> None:
        self.committer.commit(step, score=score_of(self.metrics))
        self.recorder.committed(step)

    def _reward(self) -> float | None:
        """What `rewardAbove` is compared with: validation accuracy where the job validates, else the mean reward."""
        if self.spec.data.validation:
            return self.metrics.get("validation/accuracy")
        return self.metrics.get("reward/mean")


def step_words(step: int, num_steps: int, metrics: Mapping[str, float]) -> str:
    """One step for the log, with the figures that it has: `step 3/40: reward 0.21, kl 0.001, seconds 1.3`."""
    figures = ", ".join(f"{word} {metrics[name]:.4g}" for name, word in _WORDS.items() if name in metrics)
    return f"step {step}/{num_steps}: {figures}"


def build_lead(environment: WorkerEnvironment, control: Control, reporter: Reporter) -> Lead:
    """The lead with its files open. Raises InvalidJob for a tracker that is not installed."""
    plan, spec = environment.plan, environment.plan.spec
    files = RunFiles(environment.run_dir, trackers=spec.monitoring.trackers, name=plan.job, config=spec.to_json())
    committer = Committer(
        run_dir=environment.run_dir,
        owner=environment.owner,
        plan_hash=plan.hash(),
        ranks=tuple((group.name, rank) for group in plan.groups for rank in range(group.num_workers)),
        keep_last=spec.checkpoint.keep_last,
        keep_best=spec.checkpoint.keep_best,
        deadline_seconds=spec.data_buffer.deadline_seconds,
    )
    recorder = Recorder(files, reporter, total_steps=spec.stop.steps, attempt=environment.attempt)
    return Lead(spec, control, recorder, committer, environment.keeps_checkpoints)
