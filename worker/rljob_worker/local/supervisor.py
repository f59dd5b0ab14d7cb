"""`rljob run`: keeps one gang running on this machine until the job is done, stopped, or beyond its restarts."""

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rljob_api.lifetime.failure_policy import Decision, Done, Restart, Stop, as_exit_code, decide, describe
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.forkserver.client import fork_root
from rljob_worker.forkserver.environment import ROOT, are_forked
from rljob_worker.launcher.children import PRELOAD
from rljob_worker.local.environment import NO_ROOT, ForkRoot, RunContext, pod_environment
from rljob_worker.local.gang import Commands, Gang, GangEnd, usable_cores
from rljob_worker.local.lead_warnings import lead_warnings
from rljob_worker.local.orphans import end_family
from rljob_worker.local.reaper import start_reaper
from rljob_worker.local.restart import Commit, code_after_stop, phase_of, resume_of_attempt, stop_seconds
from rljob_worker.local.rundir import RunDirectory, RunNote
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.local.start_lines import BEGINS, StartLines, worker_logs
from rljob_worker.signal_pipe import SignalPipe

TICK_SECONDS = 0.25
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


MAX_TEMPORARY_PATH = 60
"""Of 107 bytes for a socket's path, `/rljob-abcdefgh/abcdefghijkl-12345-123.sock` takes 44."""

MAX_TEMPORARY_PATH_OF_SERVICES = 24
"""Ray's sockets take 83: `/rljob-abcdefgh/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store`."""


class View(Protocol):
    """What a person sees of a run."""

    def note(self, note: RunNote) -> None:
        """The phase or the attempt changed."""

    def say(self, text: str) -> None:
        """Something happened that a person should know."""

    def tick(self) -> None:
        """Called a few times a second."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything decided before the first process starts."""

    directory: RunDirectory
    plan: Plan
    code_dir: Path
    resume: str
    """never, auto, or a step: what the first attempt starts from."""
    commands: Commands = field(default_factory=Commands)


class Supervisor:
    """Runs one `Launch`; the caller holds the directory's lock."""

    def __init__(self, launch: Launch, view: View) -> None:
        self._launch = launch
        self._view = view
        self._first_attempt = launch.directory.last_attempt() + 1
        self._mark = secrets.token_hex(16)
        self._services_mark = secrets.token_hex(16)
        self._num_requests = 0
        self._num_counted = 0
        self._stop_deadline: float | None = None
        self._written_before: tuple[int, int] | None = None
        self._start_lines = StartLines({})
        now = time.time()
        self._note = RunNote(
            name=launch.directory.name, phase="Starting", pid=os.getpid(), attempt=self._first_attempt, restarts=0,
            started_seconds=now, updated_seconds=now, total_steps=launch.plan.spec.stop.steps,
        )  # fmt: skip

    def run(self) -> RunNote:
        """Run attempts until the job ends; the note says how it ended."""
        # `nohup` and `&` in a script ignore signals on purpose
        heeded = [one for one in REQUESTS if signal.getsignal(one) != signal.SIG_IGN]
        with contextlib.ExitStack() as stack:
            room = MAX_TEMPORARY_PATH_OF_SERVICES if self._launch.plan.spec.services else MAX_TEMPORARY_PATH
            scratch = stack.enter_context(_scratch((self._mark, self._services_mark), room))
            lifeline = stack.enter_context(_lifeline())
            signals = stack.enter_context(SignalPipe((*heeded, signal.SIGCHLD)))
            self._launch.directory.write(self._launch.directory.token, secrets.token_hex(32), mode=0o600)
            root = stack.enter_context(self._fork_root(self._context(scratch, lifeline)))
            services = self._services(scratch, lifeline)
            stack.callback(services.end)
            while True:
                self._written_before = self._written()
                self._change(phase="Starting", doing="")
                end = self._wait_for(services, signals)
                if end is None:
                    context = self._context(scratch, lifeline, root, services.environment)
                    end = self._attempt(context, services, signals)
                if not self._goes_on(end):
                    return self._note
                self._change(attempt=self._note.attempt + 1, restarts=self._note.restarts + 1)

    def _wait_for(self, services: Services, signals: SignalPipe) -> GangEnd | None:
        """Until they are healthy; how the attempt ends where they do not get so."""
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

    def _attempt(self, context: RunContext, services: Services, signals: SignalPipe) -> GangEnd:
        gang = Gang(context, self._launch.commands)
        self._start_lines = StartLines(worker_logs(context.log_dir, [group.name for group in context.plan.groups]))
        self._change(doing="")
        try:
            gang.start()
            while True:
                self._obey(gang, signals)
                if self._must_stop_now():
                    return GangEnd(int(ExitCode.INTERRUPTED))
                if (end := gang.poll()) is not None:
                    return end
                self._look(gang)
                if (said := services.look(1 + self._launch.plan.spec.failure_policy.max_restarts)) is not None:
                    self._say(said)
                _wait(signals)
        finally:
            gang.end()
            # also what left its session: nothing of an attempt may meet the next one
            end_family(self._mark, grace_seconds=0.0, but=context.root.family)

    def _obey(self, gang: Gang | None, signals: SignalPipe) -> None:
        for number in signals.read():
            if number not in REQUESTS:
                continue
            self._num_requests += 1
            if self._num_requests == 1:
                self._begin_to_stop(gang)

    def _begin_to_stop(self, gang: Gang | None) -> None:
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

    def _look(self, gang: Gang) -> None:
        has_written = self._has_written()
        if self._note.phase == "Starting":
            self._tell_of_start(gang)  # all of it: what was written before the first step is in the log by now
        if self._note.phase == "Starting" and has_written:
            self._change(phase="Running", metrics_url=gang.metrics_url(), doing="")
            for warning in lead_warnings(self._launch.directory.logs(self._note.attempt), self._launch.plan.lead_group):
                self._say(f"warning: {warning}")
        self._view.tick()

    def _tell_of_start(self, gang: Gang) -> None:
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
        return self._written() not in (None, self._written_before)

    def _written(self) -> tuple[int, int] | None:
        """Changes with every step that is written. Its time is the storage's, which no clock of ours agrees with."""
        try:
            found = self._launch.directory.metrics.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size

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

    @contextlib.contextmanager
    def _fork_root(self, context: RunContext) -> Iterator[ForkRoot]:
        """What every attempt's workers are forked from: the one this process was given, or one for this run."""
        group, inherited = context.plan.groups[0], os.environ.get(ROOT, "")
        environment = pod_environment(os.environ, context, group, 0, usable_cores())
        if inherited or not self._launch.commands.forks or not are_forked(group.device, environment):
            yield ForkRoot(inherited)
            return
        path = context.scratch / "fork.sock"
        context.log_dir.mkdir(parents=True, exist_ok=True)
        with fork_root(environment, PRELOAD, path, context.log_dir / "forkserver.log") as pid:
            yield ForkRoot(str(path), frozenset({pid}))

    def _services(self, scratch: Path, lifeline: int) -> Services:
        directory, plan = self._launch.directory, self._launch.plan
        logs = directory.supervisor_log.parent
        place = ServicesPlace(plan, directory.plan, logs, scratch, self._launch.code_dir, self._services_mark, lifeline)
        return Services(place, self._launch.commands.services)

    def _context(
        self, scratch: Path, lifeline: int, root: ForkRoot = NO_ROOT, services: Mapping[str, str] | None = None
    ) -> RunContext:
        directory, attempt = self._launch.directory, self._note.attempt
        return RunContext(
            plan=self._launch.plan,
            plan_path=directory.plan,
            run_dir=directory.path,
            home="" if directory.home == directory.path else str(directory.home),
            log_dir=directory.logs(attempt),
            scratch=scratch,
            token=directory.token,
            code_dir=self._launch.code_dir,
            attempt=attempt,
            resume=resume_of_attempt(attempt, self._first_attempt, self._launch.resume, self._commits()),
            mark=self._mark,
            lifeline=lifeline,
            root=root,
            services=services or {},
        )

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


@contextlib.contextmanager
def _scratch(marks: Sequence[str], room: int) -> Iterator[Path]:
    """A directory with a short path; the reaper removes it, whatever becomes of this process. room: characters that the
    system's own directory may have."""
    is_short = len(tempfile.gettempdir()) <= room
    scratch = tempfile.mkdtemp(prefix="rljob-", dir=None if is_short else "/tmp")
    reaper = start_reaper(scratch, marks)
    try:
        yield Path(scratch)
    finally:
        assert reaper.stdin is not None
        reaper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            reaper.wait(20)


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """The read end of a pipe whose write end this process alone holds."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)
