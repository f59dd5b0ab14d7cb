"""One host of a launch: it calls host 0, follows its commands, and reports what becomes of them."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.errors import InvalidJob
from rljob_worker.local.lifetime import lifetime, rooted
from rljob_worker.local.pods.environment import RunContext
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.services import TOKEN_FILE, most_start_seconds, write_token
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.process.stop_requests import REQUESTS, heeded
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.hosts.client import Host0Connection, Interrupted, call
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Asked, Finish, Hello
from rljob_worker.supervision.hosts.rendezvous import LATECOMERS_SECONDS
from rljob_worker.supervision.hosts.secret import data_token, services_token
from rljob_worker.supervision.session import HostSession

TICK_SECONDS = 0.25
MAX_REQUESTS = 3
"""Requests to stop after which a host obeys alone."""


def pod_at(membership: Membership, plan: Plan) -> Host:
    """The pod that a host runs: the lead's group comes first, then the others as planned. Raises InvalidJob where
    hosts and pods are not as many, or an elastic group has no fixed number of pods."""
    if (group := plan.elastic_group) is not None:
        raise InvalidJob(
            f"worker group {group.name} is elastic, and a launch has the hosts that it was started with: leave elastic "
            "out and write replicas, or use `rljob run` on one machine, or a cluster"
        )
    tree = JobTree.of(plan)
    if tree.size != membership.num_hosts:
        groups = ", ".join(f"{name} {hosts}" for name, hosts in tree.groups)
        raise InvalidJob(
            f"the job has {tree.size} pods ({groups}) and there are {membership.num_hosts} hosts ("
            f"{membership.source}): start one launcher for each pod, or change workerGroups[].replicas"
        )
    return tree.host(membership.host)


@contextlib.contextmanager
def host_context(
    membership: Membership, plan: Plan, directory: RunDirectory, code_dir: Path, token: str, forks: bool
) -> Iterator[RunContext]:
    """What the processes of a host share; nobody outlives the block."""
    with lifetime() as scope:
        plan_path, token_path = scope.scratch / "plan.json", scope.scratch / "token"
        plan_path.write_text(plan.canonical_json())
        directory.write(token_path, data_token(token), mode=0o600)
        write_token(scope.scratch / TOKEN_FILE, services_token(token))
        context = RunContext(
            plan=plan,
            plan_path=plan_path,
            run_dir=directory.path,
            home=directory.home_elsewhere,
            scratch=scope.scratch,
            token=token_path,
            code_dir=code_dir,
            mark=scope.mark,
            lifeline=scope.lifeline,
            here=(pod_at(membership, plan),),
        )
        # the run directory is not known to be that of host 0 yet
        with rooted(context, forks, (scope.mark,), log=None) as context:
            yield context


class Member:
    """`run` until host 0 says that it is over."""

    def __init__(self, membership: Membership, hello: Hello, token: str, seconds: float) -> None:
        """seconds: how long host 0 may take to answer, and then until it begins."""
        self._membership = membership
        self._hello = hello
        self._token = token
        self._seconds = seconds
        self._between_seconds = seconds + LATECOMERS_SECONDS
        self._num_requests = 0

    def run(self, context: RunContext | None, commands: Commands) -> Finish:
        """context: None where the host cannot take part, as its Hello says. Raises DeadlineExceeded, InvalidJob."""
        if context is not None:
            self._between_seconds += most_start_seconds(context.plan)
        session = HostSession(context, commands)
        with SignalPipe((*heeded(), signal.SIGCHLD)) as signals:
            try:
                connection = call(self._membership, self._hello, self._token, self._seconds, signals.fd)
            except Interrupted:
                return Finish(int(ExitCode.INTERRUPTED), "stopped before host 0 answered")
            with contextlib.closing(connection):
                try:
                    return self._until_the_end(connection, session, signals)
                finally:
                    session.clear()

    def _until_the_end(self, connection: Host0Connection, session: HostSession, signals: SignalPipe) -> Finish:
        """How this host is to end, and what is said of it."""
        while True:
            _wait(connection, signals)
            for message in connection.messages():
                if isinstance(message, Finish):
                    return message
                session.obey(message)
            if connection.ended is not None:
                return Finish(int(ExitCode.RETRY), f"host 0 is gone: {connection.ended}")
            if num_new := sum(number in REQUESTS for number in signals.read()):
                self._num_requests += num_new
                connection.send(Asked(self._num_requests))
            if self._num_requests >= MAX_REQUESTS:
                return Finish(int(ExitCode.INTERRUPTED), "asked to stop again and again")
            for news in session.news():
                connection.send(news)
            if session.awaits is not None:
                seconds = self._between_seconds if session.awaits.seconds is None else session.awaits.seconds
                if time.monotonic() > session.awaits.since + seconds:
                    return Finish(int(ExitCode.RETRY), f"host 0 {session.awaits.what} within {seconds:.0f} s")


def _wait(connection: Host0Connection, signals: SignalPipe) -> None:
    reads: list[Host0Connection | int] = [connection, signals.fd]
    writes = [connection] if connection.has_to_write else []
    _, writable, _ = select.select(reads, writes, [], TICK_SECONDS)
    if writable:
        connection.flush()
