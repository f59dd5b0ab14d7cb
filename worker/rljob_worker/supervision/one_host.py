"""A job whose pods are all on this machine: a launch of one host, which is the supervising process itself."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import guests_of, hosts_of
from rljob_worker.local.lifetime import MAX_TEMPORARY_PATH, MAX_TEMPORARY_PATH_OF_SERVICES, lifetime, rooted
from rljob_worker.local.pods.environment import LOOPBACK, RunContext
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.gang import GangFactory, Hosts
from rljob_worker.supervision.hosts.connections import Event
from rljob_worker.supervision.hosts.messages import OfHost0
from rljob_worker.supervision.session import HostSession


class OneHost:
    """What a `HostConnections` is for many: the way to the only host, without a connection."""

    def __init__(self, session: HostSession) -> None:
        self._session = session

    def is_here(self, host: int) -> bool:
        return host == 0

    def address_of(self, host: int) -> str:
        return LOOPBACK

    def send(self, host: int, message: OfHost0) -> None:
        self._session.obey(message)

    def send_all(self, message: OfHost0) -> None:
        self._session.obey(message)

    def pump(self, seconds: float) -> list[Event]:
        """What has happened; waits at most so long for something."""
        end = time.monotonic() + seconds
        while not (news := self._session.news()) and time.monotonic() < end:
            time.sleep(0.01)
        return [(0, item) for item in news]


@contextlib.contextmanager
def local_gangs(
    directory: RunDirectory, plan: Plan, code_dir: Path, commands: Commands, num_guests: int = 0
) -> Iterator[GangFactory]:
    """On this machine alone; nothing of them outlives the block. num_guests: pods of the elastic group."""
    with lifetime(MAX_TEMPORARY_PATH_OF_SERVICES if plan.spec.services else MAX_TEMPORARY_PATH) as scope:
        directory.write(directory.token, secrets.token_hex(32), mode=0o600)
        context = RunContext(
            plan=plan,
            plan_path=directory.plan,
            run_dir=directory.path,
            home=directory.home_elsewhere,
            scratch=scope.scratch,
            token=directory.token,
            code_dir=code_dir,
            mark=scope.mark,
            lifeline=scope.lifeline,
            here=hosts_of(plan),
            guests=guests_of(plan)[:num_guests],
        )
        logs, mark, here = directory.supervisor_log.parent, scope.services_mark, (*context.here, *context.guests)
        folders = (directory.plan, logs, scope.scratch, code_dir)
        place = ServicesPlace(plan, *folders, mark, scope.lifeline, here, secrets.token_hex(32))
        services = Services(place, commands.services)
        marks, log = (scope.mark, scope.services_mark), directory.fork_log(context.here[0])
        with rooted(context, commands.forks, marks, log) as context, contextlib.closing(services):
            hosts = Hosts(OneHost(HostSession(context, commands)), [context.here], lambda host: "", context.guests)
            yield GangFactory(hosts, plan, "", services)
