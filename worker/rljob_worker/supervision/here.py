"""A job whose pods are all on this machine: a launch of one host, which is the supervising process itself."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.local.household import MAX_TEMPORARY_PATH, MAX_TEMPORARY_PATH_OF_SERVICES, household, rooted
from rljob_worker.local.pods.environment import LOOPBACK, RunContext
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.duty import Duty
from rljob_worker.supervision.gang import Gangs, Hosts
from rljob_worker.supervision.hub import Event
from rljob_worker.supervision.messages import OfHost0


class OneHost:
    """What a `Hub` is for many: the way to the only host, without a connection."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty

    def is_here(self, host: int) -> bool:
        return host == 0

    def address_of(self, host: int) -> str:
        return LOOPBACK

    def send(self, host: int, message: OfHost0) -> None:
        self._duty.obey(message)

    def send_all(self, message: OfHost0) -> None:
        self._duty.obey(message)

    def pump(self, seconds: float) -> list[Event]:
        """What has happened; waits at most so long for something."""
        end = time.monotonic() + seconds
        while not (news := self._duty.news()) and time.monotonic() < end:
            time.sleep(0.01)
        return [(0, each) for each in news]


@contextlib.contextmanager
def gangs_here(directory: RunDirectory, plan: Plan, code_dir: Path, commands: Commands) -> Iterator[Gangs]:
    """On this machine alone; nothing of them outlives the block."""
    with household(MAX_TEMPORARY_PATH_OF_SERVICES if plan.spec.services else MAX_TEMPORARY_PATH) as house:
        directory.write(directory.token, secrets.token_hex(32), mode=0o600)
        context = RunContext(
            plan=plan,
            plan_path=directory.plan,
            run_dir=directory.path,
            home=directory.home_elsewhere,
            scratch=house.scratch,
            token=directory.token,
            code_dir=code_dir,
            mark=house.mark,
            lifeline=house.lifeline,
            here=hosts_of(plan),
        )
        place = ServicesPlace(
            plan=plan,
            plan_path=directory.plan,
            logs=directory.supervisor_log.parent,
            scratch=house.scratch,
            code_dir=code_dir,
            mark=house.services_mark,
            lifeline=house.lifeline,
            here=context.here,
            token=secrets.token_hex(32),
        )
        services = Services(place, commands.services)
        marks, log = (house.mark, house.services_mark), directory.fork_log(context.here[0])
        with rooted(context, commands.forks, marks, log) as context, contextlib.closing(services):
            hosts = Hosts(OneHost(Duty(context, commands)), [context.here], lambda host: "")
            yield Gangs(hosts, plan, "", services)
