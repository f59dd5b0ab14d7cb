"""`rljob run` and `rljob launch`: keep one gang running until the job is done, stopped, or beyond its restarts."""

import os
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rljob_api.lifetime.failure_policy import Decision, Done, Restart, Stop, as_exit_code, decide, describe
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.local.pods.pods import GangEnd
from rljob_worker.local.restart import Commit, code_after_stop, phase_of, resume_of_attempt, stop_seconds
from rljob_worker.local.rundir.directory import RunDirectory, RunNote
from rljob_worker.local.services import Services
from rljob_worker.local.watching.lead_warnings import LeadWarnings
from rljob_worker.local.watching.progress import MetricsTail
from rljob_worker.local.watching.start_lines import BEGINS, StartLines, worker_logs
from rljob_worker.process.signal_pipe import SignalPipe

TICK_SECONDS = 0.25
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class View(Protocol):
    """What a person sees of a run."""

    def note(self, note: RunNote) -> None:
        """The phase or the attempt changed."""

    def say(self, text: str) -> None:
        """Something happened that a person should know."""

    def tick(self) -> None:
        """Called a few times a second."""


class AnyGang(Protocol):
    """The processes of one attempt, wherever they are: `start`, `poll` until it returns a GangEnd, `end`."""

    serving_seconds: float | None
    """How long data buffers took until all of them served; None until they do."""

    @property
    def num_requests(self) -> int:
        """How often one of the machines, this one aside, was asked to stop."""

    def start(self) -> None: ...

    def poll(self) -> GangEnd | None:
        """Take notice of what happened since the last call; the end, once there is one."""

    def stop(self) -> None:
        """Ask the workers to checkpoint and end."""

    def end(self) -> None:
        """End what still runs."""

    def metrics_url(self) -> str: ...


class AnyGangs(Protocol):
    """Where gangs come from, and what runs beside them over all attempts."""

    @property
    def services(self) -> Services | None:
        """None where a job cannot have any."""

    def gang(self, attempt: int, resume: str) -> AnyGang:
        """resume: what workers start from: auto, never, or a step."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything decided before the first process starts."""

    directory: RunDirectory
    plan: Plan
    resume: str
    """never, auto, or a step: what the first attempt starts from."""


class Supervisor:
    """Runs one `Launch`; the caller holds the directory's lock."""

    def __init__(self, launch: Launch, view: View, gangs: AnyGangs) -> None:
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
        self._note = RunNote(
            name=launch.directory.name, phase="Starting", pid=os.getpid(), attempt=self._first_attempt, restarts=0,
            started_seconds=now, updated_seconds=now, total_steps=launch.plan.spec.stop.steps,
        )  # fmt: skip

    def run(self) -> RunNote:
        """Run attempts until the job ends; the note says how it ended."""
        with SignalPipe((*heeded(), signal.SIGCHLD)) as signals:
            while True:
                self._begin_attempt()
                self._change(phase="Starting", doing="")
                end = self._wait_for_services(signals) or self._attempt(signals)
                if not self._goes_on(end):
                    return self._note
                self._change(attempt=self._note.attempt + 1, restarts=self._note.restarts + 1)

    def _begin_attempt(self) -> None:
        self._steps.poll()  # what stands there is of attempts before
        self._has_stepped = False

    def _wait_for_services(self, signals: SignalPipe) -> GangEnd | None:
        """Until they are healthy; how the attempt ends where they do not get so."""
        services = self._gangs.services
        if services is None:
            return None
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
        launch, attempt = self._launch, self._note.attempt
        resume = resume_of_attempt(attempt, self._first_attempt, launch.resume, self._commits())
        gang = self._gangs.gang(attempt, resume)
        groups = [group.name for group in launch.plan.groups]
        logs = worker_logs(launch.directory.logs(attempt), groups)
        self._start_lines, self._warnings = StartLines(logs), LeadWarnings(logs[launch.plan.lead_group])
        self._change(doing="")
        try:
            gang.start()
            while True:
                self._obey(gang, signals)
                end = GangEnd(int(ExitCode.INTERRUPTED)) if self._must_stop_now() else gang.poll()
                self._look(gang)  # what the attempt did to its end is told before the end is
                if end is not None:
                    return end
                self._look_after_services()
                _wait(signals)
        finally:
            gang.end()

    def _look_after_services(self) -> None:
        services, max_starts = self._gangs.services, 1 + self._launch.plan.spec.failure_policy.max_restarts
        said = None if services is None else services.look(max_starts)
        if said is not None:
            self._say(said)

    def _obey(self, gang: AnyGang | None, signals: SignalPipe) -> None:
        self._num_signals += sum(number in REQUESTS for number in signals.read())
        was_asked = self._num_requests > 0
        # whoever stops a job under Slurm signals all machines at once: that is one request
        self._num_requests = max(self._num_signals, 0 if gang is None else gang.num_requests)
        if self._num_requests > 0 and not was_asked:
            self._begin_to_stop(gang)

    def _begin_to_stop(self, gang: AnyGang | None) -> None:
        """At once while nothing of this attempt would be lost by it."""
        has_written = self._has_written()
        self._change(phase="Stopping")
        if gang is not None and has_written:
            self._stop_deadline = time.monotonic() + stop_seconds(self._launch.plan)
            self._say("stopping after this step or the next, with a checkpoint; once more stops now, without one")
            gang.stop()
        else:
            self._stop_deadline = time.monotonic()
            self._say(f"stopping now: no step has ended; {kept(self._commits())}")

    def _must_stop_now(self) -> bool:
        late = self._stop_deadline is not None and time.monotonic() >= self._stop_deadline
        return self._num_requests > 1 or late

    def _look(self, gang: AnyGang) -> None:
        has_written = self._has_written()
        if self._note.phase == "Starting":
            self._tell_of_start(gang)  # all of it: what was written before the first step is in the log by now
        if self._note.phase == "Starting" and has_written:
            self._change(phase="Running", metrics_url=gang.metrics_url(), doing="")
        if has_written:
            for warning in self._warnings.news():
                self._say(f"warning: {warning}")
        self._view.tick()

    def _tell_of_start(self, gang: AnyGang) -> None:
        if gang.serving_seconds is not None and not self._note.doing:
            self._change(doing="workers start")
            self._view.say(f"  data buffers: in {gang.serving_seconds:.1f} s")
        self._tell_news()

    def _tell_news(self) -> None:
        for line in self._start_lines.news():
            if line.endswith(BEGINS):
                self._change(doing=line.removesuffix(BEGINS))
            else:
                self._view.say(f"  {line}")

    def _has_written(self) -> bool:
        """A step, and not only the file: the lead opens it, and cuts it back, long before."""
        self._has_stepped = self._has_stepped or bool(self._steps.poll())
        return self._has_stepped

    def _goes_on(self, end: GangEnd) -> bool:
        """Whether another attempt follows; otherwise the note holds the end."""
        decision = self._decide(end)
        cause = "; ".join(filter(None, (cause_of(end), reason_of(decision))))
        log = str(end.log or "")
        if isinstance(decision, Restart):
            self._num_counted += decision.counted
            self._change(phase="Restarting", cause=cause, log=log)
            self._say(f"{cause}, {self._start_of_restart()} (log: {log})")
            return True
        code = int(decision.code) if isinstance(decision, Stop) else int(ExitCode.DONE)
        self._change(phase=phase_of(code), exit_code=code, cause=cause, log=log)
        return False

    def _decide(self, end: GangEnd) -> Decision:
        policy = self._launch.plan.spec.failure_policy
        if end.lost_machine:
            return Stop(ExitCode.RETRY, "a machine that is gone comes back with a new `rljob launch` only")
        if self._num_requests == 0:
            return decide([end.code], self._num_counted, policy)
        code = code_after_stop(end.code)
        said = describe(code) if code != ExitCode.INTERRUPTED else kept(self._commits())
        return Done() if code == ExitCode.DONE else Stop(as_exit_code(code), f"asked to stop; {said}")

    def _start_of_restart(self) -> str:
        steps = [commit.step for commit in self._commits()]
        return (
            f"from the checkpoint of step {max(steps)}" if steps else "from the beginning: there is no checkpoint yet"
        )

    def _commits(self) -> list[Commit]:
        found = committed(self._launch.directory.checkpoints)
        return [Commit(each.step, each.manifest.attempt) for each in found]

    def _say(self, text: str) -> None:
        self._view.say(text)
        self._log(text)

    def _log(self, text: str) -> None:
        """The run's diary, for whoever was not there."""
        with self._launch.directory.supervisor_log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")

    def _change(self, **changes: object) -> None:
        self._note = replace(self._note, updated_seconds=time.time(), **changes)  # type: ignore[arg-type]
        self._launch.directory.write(self._launch.directory.note, self._note.to_json())
        self._view.note(self._note)
        if "phase" in changes:
            ended = (
                f", exit code {self._note.exit_code}: {self._note.cause}" if self._note.exit_code is not None else ""
            )
            self._log(f"{self._note.phase}, attempt {self._note.attempt}{ended}")


def heeded() -> list[signal.Signals]:
    """Requests to stop that nobody ignores on purpose, as `nohup` does and `&` in a script."""
    return [one for one in REQUESTS if signal.getsignal(one) != signal.SIG_IGN]


def cause_of(end: GangEnd) -> str:
    """Who ended an attempt, and what it said; empty for an attempt that did what it should."""
    if not end.process:
        return ""
    words = end.words.cause if end.words and end.words.cause else "no last words"
    return f"{end.process}: {words}"


def reason_of(decision: Decision) -> str:
    """Why the policy decides as it does; nothing where there is nothing to explain."""
    return "" if isinstance(decision, Done) else decision.reason


def kept(commits: Sequence[Commit]) -> str:
    """What a run that stops at once has to go on from."""
    steps = [commit.step for commit in commits]
    return f"the checkpoint of step {max(steps)} stays" if steps else "there is no checkpoint"


def _wait(signals: SignalPipe) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(signals.fd, selectors.EVENT_READ)
        selector.select(TICK_SECONDS)
