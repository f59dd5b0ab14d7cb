"""One host of a launch: it calls host 0, does as it is told, and says what becomes of it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.errors import InvalidJob
from rljob_worker.hosts.calling import Interrupted, call
from rljob_worker.hosts.duty import Duty
from rljob_worker.hosts.messages import Finish, Hello
from rljob_worker.hosts.seat import Seat
from rljob_worker.hosts.secret import data_token, services_token
from rljob_worker.local.family.household import household
from rljob_worker.local.pods.environment import RunContext
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.services import TOKEN_FILE, write_token
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.process.stop_requests import heeded
from rljob_worker.rundir.directory import RunDirectory


def pod_at(seat: Seat, plan: Plan) -> Host:
    """The pod that a host runs: the lead's group comes first, then the others as planned. Raises InvalidJob where
    hosts and pods are not as many."""
    tree = JobTree.of(plan)
    if tree.size != seat.num_hosts:
        groups = ", ".join(f"{name} {hosts}" for name, hosts in tree.groups)
        raise InvalidJob(
            f"the job has {tree.size} pods ({groups}) and there are {seat.num_hosts} hosts ({seat.source}): start one "
            "launcher for each pod, or change workerGroups[].replicas"
        )
    return tree.host(seat.host)


@contextlib.contextmanager
def context_here(seat: Seat, plan: Plan, directory: RunDirectory, code_dir: Path, token: str) -> Iterator[RunContext]:
    """What the processes of a host share; nobody outlives the block."""
    with household() as house:
        plan_path, token_path = house.scratch / "plan.json", house.scratch / "token"
        plan_path.write_text(plan.canonical_json())
        directory.write(token_path, data_token(token), mode=0o600)
        write_token(house.scratch / TOKEN_FILE, services_token(token))
        yield RunContext(
            plan=plan,
            plan_path=plan_path,
            run_dir=directory.path,
            home=directory.home_elsewhere,
            scratch=house.scratch,
            token=token_path,
            code_dir=code_dir,
            mark=house.mark,
            lifeline=house.lifeline,
            here=(pod_at(seat, plan),),
        )


class Station:
    """`run` until host 0 says that it is over."""

    def __init__(self, seat: Seat, hello: Hello, token: str, seconds: float) -> None:
        """seconds: how long host 0 may take to answer, and then until it begins."""
        self._seat = seat
        self._hello = hello
        self._token = token
        self._seconds = seconds

    def run(self, context: RunContext | None, commands: Commands) -> Finish:
        """context: None where the host cannot take part, as its Hello says. Raises DeadlineExceeded, InvalidJob."""
        with SignalPipe((*heeded(), signal.SIGCHLD)) as signals:
            try:
                connection = call(self._seat, self._hello, self._token, self._seconds, signals.fd)
            except Interrupted:
                return Finish(int(ExitCode.INTERRUPTED), "stopped before host 0 answered")
            with contextlib.closing(connection), contextlib.ExitStack() as stack:
                duty = Duty(connection, context, commands, stack, self._seconds)
                return duty.until_the_end(signals)
