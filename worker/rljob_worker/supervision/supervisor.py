"""`rljob run` and `rljob launch`: keep one gang running until the job is done, stopped, or beyond its restarts."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.lifetime.failure_policy import (
    JobDone,
    PolicyDecision,
    RestartGang,
    StopJob,
    apply_failure_policy,
    as_exit_code,
    describe_exit_code,
)
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.errors import RLJobError, StorageError
from rljob_worker.local.pods.pods import GangEnd
from rljob_worker.local.watching.logs import BEGINS, LeadWarnings, StartLines, worker_logs
from rljob_worker.local.watching.progress import MetricsTail
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.process.stop_requests import REQUESTS, heeded
from rljob_worker.rundir.directory import RunDirectory, RunNote
from rljob_worker.supervision.record import RunRecord, View
from rljob_worker.supervision.restart import (
    Commit,
    code_after_stop,
    end_cause,
    kept_checkpoint,
    phase_of,
    resume_of_attempt,
    start_of_restart,
    stop_seconds,
)

if TYPE_CHECKING:  # checking a job does without what hosts of a launch need
    from rljob_worker.supervision.gang import AttemptGang, GangFactory

TICK_SECONDS = 0.25
FIRST_STEP = "first step"
"""What comes behind all that workers tell of: it may compile for minutes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything decided before the first process starts."""

    directory: RunDirectory
    plan: Plan
    resume: str
    """never, auto, or a step: what the first attempt starts from."""


class Supervisor:
    """Runs one `Launch`; the caller holds the directory's lock."""

    def __init__(self, launch: Launch, view: View, gangs: GangFactory) -> None:
        self._launch = launch
        self._view = view
        self._gangs = gangs
        self._first_attempt = launch.directory.last_attempt() + 1
        self._num_signals = 0
        self._num_requests = 0
        self._num_counted = 0
        self._stop_deadline: float | None = None
        self._steps = MetricsTail(launch.directory.metrics)
        self._has_stepped = False
        """Whether a step of this attempt is written."""
        self._start_lines, self._warnings = StartLines({}), LeadWarnings(Path(os.devnull))
        now = time.time()
        note = RunNote(
            name=launch.directory.name, phase="Starting", pid=os.getpid(), attempt=self._first_attempt, restarts=0,
            started_seconds=now, updated_seconds=now, total_steps=launch.plan.spec.stop.steps,
        )  # fmt: skip
        self._record = RunRecord(launch.directory, note, view)

    def run(self) -> RunNote:
        """Run attempts until the job ends; the note says how it ended.

        An exception, as one of a view that may be the user's, ends the run as Failed and is raised again.
        """
        try:
            return self._run_attempts()
        except Exception as error:
            code = error.exit_code if isinstance(error, RLJobError) else ExitCode.BUG
            notes = getattr(error, "__notes__", ())
            # a disk that is full takes no note either, and must not hide why the run ended
            with suppress(StorageError, OSError):
                self._record.fail(int(code), "; ".join((f"{type(error).__name__}: {error}", *notes)))
            raise

    def _run_attempts(self) -> RunNote:
        with SignalPipe((*heeded(), signal.SIGCHLD)) as signals:
            while True:
                self._steps.poll()  # what stands there is of attempts before
                self._has_stepped = False
                self._record.change(phase="Starting", doing="")
                end = self._wait_for_services(signals) or self._attempt(signals)
                if not self._goes_on(end):
                    return self._record.note
                self._record.change(attempt=self._record.note.attempt + 1, restarts=self._record.note.restarts + 1)

    def _wait_for_services(self, signals: SignalPipe) -> GangEnd | None:
        """Until they are healthy; how the attempt ends where they do not get so."""
        services = self._gangs.services
        if services.start():
            self._start_lines = StartLines({services.log.stem: services.log})
        while not services.are_healthy:
            self._obey(None, signals)
            if self._must_stop_now():
                return GangEnd(int(ExitCode.INTERRUPTED))
            if (end := services.poll()) is not None:
                return end
            self._tell_news()
            self._view.tick()
            _wait(signals)
        self._tell_news()
        return None

    def _attempt(self, signals: SignalPipe) -> GangEnd:
        launch, attempt = self._launch, self._record.note.attempt
        resume = resume_of_attempt(attempt, self._first_attempt, launch.resume, self._commits())
        gang = self._gangs.gang(attempt, resume)
        groups = [group.name for group in launch.plan.groups]
        logs = worker_logs(launch.directory.logs(attempt), groups)
        self._start_lines, self._warnings = StartLines(logs), LeadWarnings(logs[launch.plan.lead_group])
        self._record.change(doing="")
        try:
            gang.start()
            while True:
                self._obey(gang, signals)
                end = GangEnd(int(ExitCode.INTERRUPTED)) if self._must_stop_now() else gang.poll()
                self._look(gang)  # what the attempt did to its end is reported before the end is
                if end is not None:
                    return end
                if said := self._gangs.services.look(1 + launch.plan.spec.failure_policy.max_restarts):
                    self._record.say(said)
                _wait(signals)
        finally:
            gang.end()

    def _obey(self, gang: AttemptGang | None, signals: SignalPipe) -> None:
        self._num_signals += sum(number in REQUESTS for number in signals.read())
        was_asked = self._num_requests > 0
        # Slurm signals all machines at once when a job is stopped: that is one request
        self._num_requests = max(self._num_signals, (self._gangs if gang is None else gang).hear_requests())
        if self._num_requests > 0 and not was_asked:
            self._begin_to_stop(gang)

    def _begin_to_stop(self, gang: AttemptGang | None) -> None:
        """At once while nothing of this attempt would be lost by it."""
        has_written = self._has_written()
        self._record.change(phase="Stopping")
        if gang is not None and has_written:
            self._stop_deadline = time.monotonic() + stop_seconds(self._launch.plan)
            delay = self._launch.plan.verdict_delay
            when = "this step or the next" if delay == 1 else f"at most {delay} more steps"
            self._record.say(f"stopping after {when}, with a checkpoint; once more stops now, without one")
            gang.stop()
        else:
            self._stop_deadline = time.monotonic()
            self._record.say(f"stopping now: no step has ended; {kept_checkpoint(self._commits())}")

    def _must_stop_now(self) -> bool:
        late = self._stop_deadline is not None and time.monotonic() >= self._stop_deadline
        return self._num_requests > 1 or late

    def _look(self, gang: AttemptGang) -> None:
        has_written = self._has_written()
        if self._record.note.phase == "Starting":
            if gang.serving_seconds is not None and not self._record.note.doing:
                self._record.change(doing="workers start")
                self._view.say(f"  data buffers: in {gang.serving_seconds:.1f} s")
            self._tell_news()  # all of it: what was written before the first step is in the log by now
        for words in gang.news():
            self._record.say(words)
        if self._record.note.phase == "Starting" and has_written:
            self._record.change(phase="Running", metrics_url=gang.metrics_url(), doing="")
        if has_written:
            for warning in self._warnings.news():
                self._record.say(f"warning: {warning}")
        self._view.tick()

    def _tell_news(self) -> None:
        for line in self._start_lines.news():
            if line.endswith(BEGINS):
                self._record.change(doing=line.removesuffix(BEGINS))
            else:
                self._record.change(doing=FIRST_STEP)
                self._view.say(f"  {line}")

    def _has_written(self) -> bool:
        """A step, and not only the file: the lead opens it, and cuts it back, long before."""
        self._has_stepped = self._has_stepped or bool(self._steps.poll())
        return self._has_stepped

    def _goes_on(self, end: GangEnd) -> bool:
        """Whether another attempt follows; otherwise the note holds the end."""
        decision = self._decide(end)
        reason = "" if isinstance(decision, JobDone) else decision.reason
        cause = "; ".join(filter(None, (end_cause(end), reason)))
        if isinstance(decision, RestartGang):
            self._num_counted += decision.counted
            self._record.change(phase="Restarting", cause=cause, log=end.log)
            self._record.say(f"{cause}, {start_of_restart(self._commits())} (log: {end.log})")
            return True
        code = int(decision.code) if isinstance(decision, StopJob) else int(ExitCode.DONE)
        self._record.change(phase=phase_of(code), exit_code=code, cause=cause, log=end.log)
        return False

    def _decide(self, end: GangEnd) -> PolicyDecision:
        policy = self._launch.plan.spec.failure_policy
        if end.lost_machine:
            return StopJob(ExitCode.RETRY, "a machine that is gone comes back with a new `rljob launch` only")
        if self._num_requests == 0:
            return apply_failure_policy([end.code], self._num_counted, policy)
        code = code_after_stop(end.code)
        said = describe_exit_code(code) if code != ExitCode.INTERRUPTED else kept_checkpoint(self._commits())
        return JobDone() if code == ExitCode.DONE else StopJob(as_exit_code(code), f"asked to stop; {said}")

    def _commits(self) -> list[Commit]:
        result = committed(self._launch.directory.checkpoints)
        return [Commit(item.step, item.manifest.attempt) for item in result]


def _wait(signals: SignalPipe) -> None:
    select.select([signals.fd], [], [], TICK_SECONDS)
