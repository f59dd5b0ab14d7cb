"""How all ranks end a step with one opinion, although none waits for the others.

    every worker --report(k)--> merged on the way --> lead --verdict(k)--> every worker, for the end of step k + D

D is `Plan.verdict_delay`, so that reports climb and the verdict comes down while later steps run. Only the last step is
waited for. What a verdict says (`decide`) and what the end of a step consists of (`end_of`) are pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Protocol

from rljob_api.v1alpha1 import RLJobSpec, StopSpec
from rljob_worker.databuffer.protocol.worker_calls import ReportTopic
from rljob_worker.databuffer.routes.job_tree import OPENING, VERDICT
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.reporter import Reporter


class ControlChannel(Protocol):
    """The part of the data buffer client that control uses: one tree of all hosts, reports up, announcements down.

    Waits are bounded and raise DeadlineExceeded naming who is late, PeerLost when there is no one to wait for.
    """

    def report(self, step: int, payload: bytes, topic: ReportTopic = "report") -> None:
        """Hand in this worker's report of a step, or of its validation."""

    def collect(self, step: int, topic: ReportTopic = "report", deadline_seconds: float | None = None) -> bytes:
        """The lead's: the merged report of all workers, or of all who validate."""
        ...

    def announce(self, topic: str, step: int, payload: bytes) -> None:
        """The lead's: notify every worker."""

    def await_announcement(self, topic: str, step: int) -> bytes: ...

    def stop_requested(self) -> bool:
        """The lead's: whether any worker was asked to stop."""
        ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What the lead announces to every worker before the first step: where the job goes on."""

    step: int
    checkpoint: str | None
    meeting: str = ""
    """Address, `host:port`, of the store where workers of several groups meet: that of the lead's world."""
    last_step: int | None = None
    """Where the job ends by a verdict that an earlier attempt has reached, and why."""
    cause: str = ""
    owes_validation: bool = False
    """Whether the step is still to be validated: its checkpoint was committed before that was done."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the job ends, as far as it is known. Once it is, later verdicts say the same."""

    last_step: int | None = None
    stopped: bool = False
    """The last step comes early, on request: exit 76, without a validation of its own."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What all workers do between the stages of a step and the next step."""

    is_last: bool = False
    syncs: bool = True
    """Whether new weights go to those who sample. Not after the last step of a job, unless it is validated; a job that
    stops early syncs, so that the step is measured as in one that goes on."""
    validates: bool = False
    saves: bool = False


class Control(Protocol):
    """A worker's end of it: `Follower`, or `Lead` in one worker of the job."""

    def open(self) -> Opening: ...

    def attend(self, step: int, active_seconds: float) -> AbstractContextManager[None]:
        """Reports and verdicts are about steps after `step`, in a job that has run for so long, inside of this."""

    @property
    def active_seconds(self) -> float:
        """Seconds of running, earlier attempts included; 0 where nobody counts them."""
        ...

    def report(self, step: int, report: StepReport, topic: ReportTopic = "report") -> None:
        """Hand in a report of a step, or of its validation where that is made while later steps are under way; the
        launcher of this worker is shown what is for it."""

    def verdict(self, step: int) -> Verdict:
        """The verdict on `step` or on one that came after it; waits for it."""
        ...

    def fail(self) -> None:
        """The worker ends by an error, which the lead reports to trackers. Raises nothing."""


def next_verdict(
    step: int,
    earlier: Verdict,
    *,
    stop: StopSpec,
    delay: int,
    stop_requested: bool,
    reward: float | None,
    active_seconds: float,
) -> Verdict:
    """The verdict on `step` (0 is the validation before the first), after an `earlier` one."""
    governed = step + delay
    if earlier.last_step is not None:
        return earlier
    if governed >= stop.steps:
        return Verdict(stop.steps, cause=f"reached step {stop.steps}")
    if stop_requested:
        return Verdict(governed, stopped=True, cause="asked to stop")
    if stop.reward_above is not None and reward is not None and reward > stop.reward_above:
        return Verdict(governed, cause=f"reward {reward:.4g} is above {stop.reward_above:.4g}")
    if stop.active_seconds is not None and active_seconds > stop.active_seconds:
        return Verdict(governed, cause=f"active for {active_seconds:.0f} s")
    return Verdict()


def verdict_before(step: int, rewards: Mapping[int, float], *, stop: StopSpec, delay: int) -> Verdict:
    """The verdict on `step`, where an attempt goes on, as far as metrics tell.

    Verdicts on the last `delay` steps govern steps that are still to come. Requests to stop have been granted.
    rewards: what `stop.rewardAbove` looks at, by step.
    """
    verdict = Verdict()
    for judged in range(max(0, step - delay + 1), step + 1):
        verdict = next_verdict(
            judged,
            verdict,
            stop=stop,
            delay=delay,
            stop_requested=False,
            reward=rewards.get(judged),
            active_seconds=0.0,
        )
    return verdict


def reward_name(spec: RLJobSpec) -> str:
    """The metric that `stop.rewardAbove` looks at."""
    return "validation/accuracy" if spec.validates else "reward/mean"


def governing(step: int, *, delay: int, first: int) -> int | None:
    """The step whose verdict says how `step` ends; None before there is any. `first`: the first that was reported."""
    return step - delay if step - delay >= first else None


def end_of(step: int, spec: RLJobSpec, verdict: Verdict, *, keeps_checkpoints: bool) -> StepEnd:
    """How a step ends under the verdict that governs it, or any later one."""
    is_last = step in (spec.stop.steps, verdict.last_step)
    is_whole = is_last and not verdict.stopped
    validates = spec.validates and (is_whole or is_nth(step, spec.validation.every_steps))
    return StepEnd(
        is_last=is_last,
        syncs=validates or not is_whole,
        validates=validates,
        saves=keeps_checkpoints and (is_last or is_nth(step, spec.checkpoint.every_steps)),
    )


def is_nth(step: int, every_steps: int) -> bool:
    """Whether something that is done `every_steps` is done in `step`; 0 is never."""
    return step > 0 and every_steps > 0 and step % every_steps == 0


@dataclass(frozen=True, slots=True)
class Follower:
    """Every worker but the lead."""

    channel: ControlChannel
    ordinal: int
    """Number of the worker over all groups."""
    reporter: Reporter
    """Shows this worker's own figures, where the lead's shows those of all."""
    active_seconds: float = 0.0

    def open(self) -> Opening:
        return Opening(**json.loads(self.channel.await_announcement(OPENING, 0)))

    def attend(self, step: int, active_seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def report(self, step: int, report: StepReport, topic: ReportTopic = "report") -> None:
        self.channel.report(step, report_to_bytes(report, self.ordinal), topic)
        self.reporter.send({name: scalar.value for name, scalar in report.metrics.items()})

    def verdict(self, step: int) -> Verdict:
        return Verdict(**json.loads(self.channel.await_announcement(VERDICT, step)))

    def fail(self) -> None:
        """Nobody follows the run here."""


def said(message: Opening | Verdict) -> bytes:
    """A message of the lead as it is announced."""
    return json.dumps(asdict(message)).encode()
