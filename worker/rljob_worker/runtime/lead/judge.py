"""What the lead does with a step that every worker has reported: record it, decide, announce the verdict, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.checkpoint.background import Background
from rljob_worker.checkpoint.writer import Committer
from rljob_worker.metrics.report import StepReport
from rljob_worker.runtime.control import StepEnd, Verdict, end_of, next_verdict, reward_name
from rljob_worker.runtime.figures import merged
from rljob_worker.runtime.lead.mismatch_watch import MismatchWatch
from rljob_worker.runtime.lead.recorder import Recorder, score_of

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
class StepJudge:
    """Judges steps one after the other."""

    spec: RLJobSpec
    delay: int
    """`Plan.verdict_delay`."""
    recorder: Recorder
    committer: Committer
    keeps_checkpoints: bool
    stop_requested: Callable[[], bool]
    write_timeline: Callable[[int], None]
    """Writes the timeline of a step that was profiled, once all have reported it; raises nothing."""
    verdict: Verdict = field(default_factory=Verdict)
    """The latest."""
    committing: Background = field(default_factory=lambda: Background("commit"))
    """The checkpoint of a step that was judged, while workers write their parts of it and later steps are judged."""

    def __post_init__(self) -> None:
        self.mismatch = MismatchWatch(self.spec)

    def is_validated_later(self, step: int) -> bool:
        """Whether a step is validated while later ones are under way, as generators have its weights only then."""
        return self.spec.rollout.max_staleness > 0 and step > 0 and self._end(step).validates

    def begin(self, step: int, report: StepReport) -> None:
        """A step that is validated later: it is kept, and its checkpoint does not wait for that. That of the last step
        does, as nobody would come back to validate it. Raises what an earlier commit broke by."""
        self.committing.check()
        self.recorder.hold(step, report)
        end = self._end(step)
        if end.saves and not end.is_last:
            self.committing.start(partial(self._commit, step, None))

    def judge(self, step: int, report: StepReport, announce: Callable[[int, Verdict], None]) -> None:
        """Workers report a step once they have begun to write its checkpoint, so one that all have reported will be
        whole. Nobody waits for the commit but those who want to leave: the verdict on the last step says that all is
        done. Raises what an earlier commit broke by, and BadData for `rollout.maxMismatch`. report: with the
        validation, also where that came later.
        """
        self.committing.check()
        metrics = self.recorder.record(step, report)
        log.info("%s", step_words(step, self.spec.stop.steps, metrics))
        self.mismatch.check(step, metrics)
        self.verdict = self._decide(step, metrics)
        end = self._end(step)
        if not end.is_last:
            announce(step, self.verdict)
        if end.saves:
            is_committed = self.is_validated_later(step) and not end.is_last
            work = self._score if is_committed else self._commit
            self.committing.start(partial(work, step, score_of(metrics)))
        if end.is_last:
            self.committing.wait()
            announce(step, self.verdict)
        if step in self.spec.training.profile.steps:
            self.write_timeline(step)

    def validated_late(self, step: int, validation: StepReport, announce: Callable[[int, Verdict], None]) -> None:
        """The validation that an earlier attempt owed to the step where this one goes on, and the verdict on it."""
        held = self.recorder.held(step)
        assert held is not None, f"nothing is known of step {step}"
        metrics = self.recorder.record(step, merged(held, validation))
        self.verdict = self._decide(step, metrics)
        announce(step, self.verdict)
        self._score(step, score_of(metrics))

    def _end(self, step: int) -> StepEnd:
        return end_of(step, self.spec, self.verdict, keeps_checkpoints=self.keeps_checkpoints)

    def _score(self, step: int, score: float | None) -> None:
        if score is not None:
            self.committer.score(step, score)

    def _commit(self, step: int, score: float | None) -> None:
        checkpoint = self.committer.commit(step, score=score)
        self.recorder.committed(step, checkpoint)

    def _decide(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        return next_verdict(
            step,
            self.verdict,
            stop=self.spec.stop,
            delay=self.delay,
            stop_requested=self.stop_requested(),
            reward=metrics.get(reward_name(self.spec)),
            active_seconds=self.recorder.active_seconds,
        )


def step_words(step: int, num_steps: int, metrics: Mapping[str, float]) -> str:
    """One step for the log, with the figures that it has: `step 3/40: reward 0.21, kl 0.001, seconds 1.3`."""
    figures = ", ".join(f"{word} {metrics[name]:.4g}" for name, word in _WORDS.items() if name in metrics)
    return f"step {step}/{num_steps}: {figures}"
