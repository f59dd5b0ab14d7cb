"""Guests on this machine: pods of an elastic group, each started by itself and, where it ends, started again.

    due -> its data buffer starts -> serves, and stands in the address book -> its launcher runs -> it ended: due again

A gang does not wait for them, and does not end by their end, but by an exit code that says that the job or its data is
bad: every other start would end the same way.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_api.lifetime.failure_policy import describe_exit_code, why_guest_ends_job
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.local.pods.environment import RunContext, pod_environment, termination_log_of, usable_cores
from rljob_worker.local.pods.pods import (
    READY_SECONDS,
    AddressLists,
    Commands,
    GangEnd,
    LocalPod,
    end_data_buffers,
    launcher_end,
    remove_leftovers,
    start_launcher,
    write_address_book,
)
from rljob_worker.process.child import LoggedChild
from rljob_worker.process.last_words import LastWords
from rljob_worker.process.marked_processes import end_marked_processes
from rljob_worker.process.restart_pauses import LONG_LIFE_SECONDS, pause_seconds

ENV_GUEST = "RLJOB_GUEST"
"""Environment variable: group, number and start of a guest, by which what is left of it is found among the processes of
its run."""


@dataclass(slots=True)
class _Guest:
    """One number of the elastic group, and its present life, if it has one."""

    at: Host
    start: int = 0
    """How many lives it has had, with the present one."""
    num_short_lives: int = 0
    due: float = 0.0
    began: float = 0.0
    pod: LocalPod | None = None
    address: str | None = None
    """host:port of its data buffer, while that serves."""
    is_done: bool = False
    """Whether it ended because there is nothing left to generate."""

    @property
    def mark(self) -> str:
        return f"{self.at}-{self.start}"


class Guests:
    """`begin` once the data buffers of the gang serve, then `poll` now and then, and `end`."""

    def __init__(self, context: RunContext, commands: Commands, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._commands, self._clock = context, commands, clock
        self._guests = [_Guest(guest) for guest in context.guests]
        self._gang: AddressLists | None = None
        self._said: list[str] = []

    def begin(self, gang: AddressLists) -> None:
        """gang: where its data buffers are."""
        self._gang = gang
        now = self._clock()
        for guest in self._guests:
            guest.due = now

    def poll(self) -> GangEnd | None:
        """Take notice of what happened since the last call; how the attempt ends, where a guest ends it."""
        if self._gang is None:
            return None
        for guest in self._guests:
            end = self._look(guest)
            if end is not None and why_guest_ends_job(end.code, self._context.plan.spec.failure_policy):
                return end
        return None

    def news(self) -> list[str]:
        """What is to be told since the last call."""
        said, self._said = self._said, []
        return said

    def end(self) -> None:
        """End those that run; what left its session is ended with the gang's."""
        self._gang = None
        living = [guest for guest in self._guests if guest.pod is not None]
        for guest in living:
            if guest.pod is not None and guest.pod.launcher is not None:
                guest.pod.launcher.kill()
        end_data_buffers([guest.pod.buffer for guest in living if guest.pod is not None])
        for guest in living:
            if guest.pod is not None:
                remove_leftovers(self._context.plan, [guest.pod])
                guest.pod = None

    def _look(self, guest: _Guest) -> GangEnd | None:
        """How its life ended, if it just did."""
        pod = guest.pod
        if pod is None:
            if not guest.is_done and self._clock() >= guest.due:
                self._start(guest)
            return None
        end = self._end_of(guest, pod)
        if end is not None:
            self._end(guest, pod, end)
            return end
        if pod.launcher is None and (ready := pod.buffer.ready()) is not None:
            guest.address = f"{self._context.address}:{ready['port']}"
            self._write_address_book()
            pod.launcher = start_launcher(self._context, self._commands, pod, self._log("launcher", guest))
        return None

    def _start(self, guest: _Guest) -> None:
        guest.start += 1
        guest.began = self._clock()
        termination_log_of(self._context.log_dir, guest.at).unlink(missing_ok=True)
        environment = pod_environment(os.environ, self._context, guest.at, usable_cores())
        environment[ENV_GUEST] = guest.mark
        log = self._log("databuffer", guest)
        buffer = LoggedChild(log.stem, self._commands.buffer, environment, log, lifeline_fd=self._context.lifeline)
        guest.pod = LocalPod(guest.at, environment, buffer)

    def _log(self, process: str, guest: _Guest) -> Path:
        """A file for each life: what is ready says so in its own."""
        start = f"-start-{guest.start}" if guest.start > 1 else ""
        return self._context.log_dir / f"{process}-{guest.at}{start}.log"

    def _end_of(self, guest: _Guest, pod: LocalPod) -> GangEnd | None:
        launcher_code = None if pod.launcher is None else pod.launcher.code()
        if launcher_code is not None:
            return launcher_end(self._context, pod, launcher_code)
        buffer_code = pod.buffer.code()
        if buffer_code is not None:
            code = buffer_code or int(ExitCode.RETRY)
            return GangEnd(code, pod.buffer.name, LastWords(code, cause=pod.buffer.last_line()), str(pod.buffer.log))
        if pod.launcher is None and self._clock() - guest.began > READY_SECONDS:
            words = LastWords(int(ExitCode.RETRY), cause=f"it did not serve within {READY_SECONDS:.0f} s")
            return GangEnd(words.code, pod.buffer.name, words, str(pod.buffer.log))
        return None

    def _end(self, guest: _Guest, pod: LocalPod, end: GangEnd) -> None:
        """What is left of a life goes, and the next one is due."""
        if pod.launcher is not None:
            pod.launcher.kill()
        pod.buffer.kill()
        remove_leftovers(self._context.plan, [pod])
        end_marked_processes(self._context.mark, f"{ENV_GUEST}={guest.mark}", grace_seconds=0.0)
        guest.pod, guest.address, now = None, None, self._clock()
        self._write_address_book()
        if end.code == ExitCode.DONE:
            guest.is_done = True
            return
        guest.num_short_lives = 1 if now - guest.began >= LONG_LIFE_SECONDS else guest.num_short_lives + 1
        pause = pause_seconds(guest.num_short_lives)
        guest.due = now + pause
        cause = end.words.cause if end.words is not None else ""
        why = describe_exit_code(end.code) + (f" ({cause})" if cause and "no last words" not in cause else "")
        self._said.append(f"generator {guest.at} ended: {why}; it starts again in {pause:.0f} s (log: {end.log})")

    def _write_address_book(self) -> None:
        assert self._gang is not None
        write_address_book(self._context, {**self._gang, **self.addresses()})

    def addresses(self) -> AddressLists:
        """Where data buffers of guests are, by group; None in the place of one that is not there."""
        group = self._context.plan.elastic_group
        if group is None:
            return {}
        known = {guest.at.index: guest.address for guest in self._guests}
        return {group.name: [known.get(index) for index in range(group.replicas)]}
