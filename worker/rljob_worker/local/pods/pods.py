"""The pods of one attempt on one machine: a data buffer and a launcher each, started, watched and ended together."""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode, is_failure
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.forkserver.client import ForkedChild
from rljob_worker.forkserver.forking import ForkRequest
from rljob_worker.launcher.pod_exit import SETTLE_SECONDS, Exit, first_cause, pod_exit_code
from rljob_worker.local.pods.environment import RunContext, pod_environment, termination_log_of, usable_cores
from rljob_worker.process.child import LoggedChild, command_of
from rljob_worker.process.last_words import LastWords, read_last_words
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.process.marked_processes import end_marked_processes

READY_SECONDS = 120.0
"""How long a data buffer may take to serve; reserving memory takes most of it."""
GANG_SETTLE_SECONDS = 2 * SETTLE_SECONDS
"""A launcher takes up to SETTLE_SECONDS to end after its worker did."""
BUFFER_GRACE_SECONDS = 10.0
LAUNCHER = "rljob_worker.launcher"

AddressLists = dict[str, list[str | None]]
"""host:port by group, in the order of its hosts; None in the place of a guest that is not there now."""


@dataclass(frozen=True, slots=True)
class Commands:
    """What a pod consists of, and what runs next to pods. Tests put their own processes here."""

    buffer: tuple[str, ...] = command_of("rljob_worker.databuffer")
    launcher: tuple[str, ...] = command_of(LAUNCHER)
    services: tuple[str, ...] = command_of("rljob_worker.services")
    forks: bool = True
    """Whether launchers fork their workers, so that what these import is worth importing once."""


@dataclass(slots=True)
class LocalPod:
    """The processes of one planned pod."""

    at: Host
    environment: Mapping[str, str]
    buffer: LoggedChild
    launcher: ForkedChild | None = None


@dataclass(frozen=True, slots=True)
class GangEnd:
    """How an attempt ended."""

    code: int
    process: str = ""
    """The process that explains the code, such as `worker train-0-1`; empty when nobody failed."""
    words: LastWords | None = None
    log: str = ""
    """Log of the process that explains the code."""
    lost_machine: bool = False
    """A machine is gone, and with it all further attempts on these."""


class Pods:
    """`start`, `meet` once all data buffers serve, then `poll` until it returns a GangEnd, then `end`; `stop` asks for
    a checkpoint."""

    def __init__(self, context: RunContext, commands: Commands) -> None:
        self._context = context
        self._commands = commands
        self.pods: list[LocalPod] = []
        """Those of this machine, in the order of the plan's hosts."""
        self._exits: dict[str, Exit] = {}
        self._kill_at: float | None = None
        self._is_stopping = False
        self._started = time.monotonic()
        self.serving_seconds: float | None = None
        """How long data buffers took until all of them served; None until they do."""

    def start(self) -> None:
        """Start the data buffers."""
        self._context.log_dir.mkdir(parents=True, exist_ok=True)
        for pod in self._context.here:
            environment = pod_environment(os.environ, self._context, pod, usable_cores())
            # signals to a whole Slurm step or systemd unit mean the workers: SIGHUP alone is this process's word
            log = self._context.log_dir / f"databuffer-{pod}.log"
            buffer = LoggedChild(log.stem, self._commands.buffer, environment, log, lifeline_fd=self._context.lifeline)
            self.pods.append(LocalPod(pod, environment, buffer))

    def addresses(self) -> AddressLists | None:
        """Where the data buffers here are, by group and in order; None until all of them serve."""
        if self.serving_seconds is None:
            return None
        addresses: AddressLists = {}
        for pod in self.pods:
            ready = pod.buffer.ready()
            assert ready is not None
            addresses.setdefault(pod.at.group, []).append(f"{self._context.address}:{ready['port']}")
        return addresses

    def meet(self, address_book: AddressLists) -> None:
        """Give the pods the addresses of all pods of the job, and start their launchers."""
        write_address_book(self._context, address_book)
        for pod in self.pods:
            log = self._context.log_dir / f"launcher-{pod.at}.log"
            pod.launcher = start_launcher(self._context, self._commands, pod, log)

    def poll(self) -> GangEnd | None:
        """Take notice of what happened since the last call; the end, once there is one."""
        if not self._launchers:
            return self._poll_buffers()
        self._note_exits()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return self._verdict()
        # as noted: one that has ended since then is not among the exits that the verdict is made of
        if all(launcher.name in self._exits for launcher in self._launchers):
            return self._verdict()
        return None

    def stop(self) -> None:
        """Ask the workers to checkpoint and end; without workers, the end has come."""
        self._is_stopping = True
        for launcher in self._launchers:
            launcher.signal(signal.SIGTERM)

    def end(self) -> None:
        """End what still runs, and what left its session. Data buffers get a moment to give their memory back."""
        for launcher in self._launchers:
            launcher.kill()
        end_data_buffers([pod.buffer for pod in self.pods])
        remove_leftovers(self._context.plan, self.pods)
        # nothing of an attempt may meet the next one
        end_marked_processes(self._context.mark, grace_seconds=0.0)

    def metrics_url(self) -> str:
        """Where the lead's launcher serves /metrics and /progress; empty until it does, and where the lead is not."""
        lead = Host(self._context.plan.lead_group, 0)
        ready = next((pod.launcher.ready() for pod in self.pods if pod.at == lead and pod.launcher), None)
        return f"http://127.0.0.1:{ready['metricsPort']}/metrics" if ready else ""

    @property
    def _launchers(self) -> list[ForkedChild]:
        return [pod.launcher for pod in self.pods if pod.launcher is not None]

    def _poll_buffers(self) -> GangEnd | None:
        if self._is_stopping:
            return GangEnd(int(ExitCode.INTERRUPTED))
        for pod in self.pods:
            code = pod.buffer.code()
            if code is not None:
                return self._buffer_end(pod.buffer, code)
        if self.serving_seconds is not None:
            return None
        if all(pod.buffer.ready() is not None for pod in self.pods):
            self.serving_seconds = time.monotonic() - self._started
        elif time.monotonic() - self._started > READY_SECONDS:
            late = next(pod.buffer for pod in self.pods if pod.buffer.ready() is None)
            words = LastWords(int(ExitCode.RETRY), cause=f"it did not serve within {READY_SECONDS:.0f} s")
            return GangEnd(words.code, late.name, words, str(late.log))
        return None

    def _note_exits(self) -> None:
        for pod in self.pods:
            self._note_exit(pod.launcher)
            if any(launcher.code() is None for launcher in self._launchers):
                self._note_exit(pod.buffer, expected_to_run=True)
        if self._kill_at is None and any(is_failure(one.code) for one in self._exits.values()):
            self._kill_at = time.monotonic() + GANG_SETTLE_SECONDS

    def _note_exit(self, process: LoggedChild | ForkedChild | None, expected_to_run: bool = False) -> None:
        if process is None or process.name in self._exits:
            return
        code = process.code()
        if code is None:
            return
        if expected_to_run and code == ExitCode.DONE:
            code = ExitCode.RETRY  # a buffer that leaves its workers alone has failed them
        self._exits[process.name] = Exit(process.name, int(code), time.monotonic())

    def _verdict(self) -> GangEnd:
        exits = list(self._exits.values())
        cause = first_cause(exits, GANG_SETTLE_SECONDS)
        if cause is None:
            return GangEnd(pod_exit_code(exits))
        for pod in self.pods:
            if pod.launcher is not None and pod.launcher.name == cause.name:
                return launcher_end(self._context, pod, cause.code)
            if pod.buffer.name == cause.name:
                return self._buffer_end(pod.buffer, cause.code)
        raise AssertionError(f"no process {cause.name}")

    def _buffer_end(self, buffer: LoggedChild, code: int) -> GangEnd:
        code = code or int(ExitCode.RETRY)
        return GangEnd(code, buffer.name, LastWords(code, cause=buffer.last_line()), str(buffer.log))


def write_address_book(context: RunContext, address_book: AddressLists) -> None:
    """Where the data buffers are, in a file that is there as a whole or not at all."""
    partial = context.address_book.with_suffix(".partial")
    partial.write_text(json.dumps(address_book))
    partial.rename(context.address_book)


def start_launcher(context: RunContext, commands: Commands, pod: LocalPod, log: Path) -> ForkedChild:
    """The launcher of a pod whose data buffer runs."""
    command = commands.launcher
    with log.open("ab") as output:
        request = ForkRequest(
            name=log.stem,
            module=LAUNCHER if command == command_of(LAUNCHER) else "",
            command=command,
            environment=dict(pod.environment),
            pipe_variable=LIFELINE_FD,
            output=output.fileno(),
            errors=output.fileno(),
            pipe=context.lifeline,
            folder=os.getcwd(),
        )
        return ForkedChild(context.connect(), request, log)


def end_data_buffers(buffers: Sequence[LoggedChild]) -> None:
    """They get a moment to give their memory back."""
    for buffer in buffers:
        buffer.signal(signal.SIGHUP)
    deadline = time.monotonic() + BUFFER_GRACE_SECONDS
    while any(buffer.code() is None for buffer in buffers) and time.monotonic() < deadline:
        time.sleep(0.01)
    for buffer in buffers:
        buffer.kill()


def remove_leftovers(plan: Plan, pods: Sequence[LocalPod]) -> None:
    """Remove what killed data buffers left: memory, and disk where perhaps no other one ever runs."""
    if not any(pod.buffer.code() for pod in pods):
        return
    from rljob_worker.databuffer.store import segment_files as files

    for environment in (pod.environment for pod in pods):
        files.remove_leftovers(files.ARENA, Path(environment.get(keys.ENV_ARENA_DIR, keys.SHARED_MEMORY)))
        if spill := plan.spec.data_buffer.spill:
            files.remove_leftovers(files.SPILL, Path(spill.directory or environment[keys.ENV_SPILL_DIR]))


def launcher_end(context: RunContext, pod: LocalPod, code: int) -> GangEnd:
    """How a pod ended, in the words of the worker that explains it."""
    words = read_last_words(termination_log_of(context.log_dir, pod.at))
    if words is None or not words.worker:
        assert pod.launcher is not None
        lines = words.cause if words else pod.launcher.last_line()
        return GangEnd(code, pod.launcher.name, LastWords(code, cause=lines), str(pod.launcher.log))
    worker = f"worker-{words.worker}"
    return GangEnd(code, worker, words, str(context.log_dir / f"{worker}.log"))
