"""A job's pods when all of them are on this machine, attempt by attempt."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.forkserver.client import fork_root
from rljob_worker.forkserver.environment import ROOT, are_forked
from rljob_worker.launcher.preloading import preload_for
from rljob_worker.local.family.household import MAX_TEMPORARY_PATH, MAX_TEMPORARY_PATH_OF_SERVICES, household
from rljob_worker.local.pods.environment import LOOPBACK, ForkRoot, RunContext, pod_environment
from rljob_worker.local.pods.interface import interface_of
from rljob_worker.local.pods.pods import Commands, GangEnd, Pods, usable_cores
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.rundir.directory import RunDirectory


class Gang(Pods):
    """All pods of one attempt: nobody else has to be asked where they are."""

    def __init__(self, context: RunContext, commands: Commands) -> None:
        super().__init__(context, commands)
        self._have_met = False

    def start(self) -> None:
        if self._context.plan.spec.data_buffer.tls:
            from rljob_worker.local.pods.certificates import issue_here  # most jobs have no use for its 50 ms

            issue_here(self._context.plan, self._context.attempt, self._context.certificates)
        super().start()

    def hear_requests(self) -> int:
        """From elsewhere: there is nowhere else."""
        return 0

    def poll(self) -> GangEnd | None:
        end = super().poll()
        book = self.addresses()
        if end is None and book is not None and not self._have_met:
            self._have_met = True
            self.meet(book)
        return end


class Gangs:
    """Makes the gang of every attempt."""

    def __init__(self, context: RunContext, commands: Commands, services: Services) -> None:
        self._context = context
        self._commands = commands
        self.services = services

    def hear_requests(self) -> int:
        """As of a gang."""
        return 0

    def gang(self, attempt: int, resume: str) -> Gang:
        reached = self.services.environment
        return Gang(replace(self._context, attempt=attempt, resume=resume, services=reached), self._commands)


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
            interface=interface_of(LOOPBACK),
        )
        logs = directory.supervisor_log.parent
        place = ServicesPlace(
            plan=plan,
            plan_path=directory.plan,
            logs=logs,
            scratch=house.scratch,
            code_dir=code_dir,
            mark=house.services_mark,
            lifeline=house.lifeline,
            here=context.here,
            token=secrets.token_hex(32),
        )
        services = Services(place, commands.services)
        with rooted(context, commands) as context:
            try:
                yield Gangs(context, commands, services)
            finally:
                services.end()


@contextlib.contextmanager
def rooted(context: RunContext, commands: Commands) -> Iterator[RunContext]:
    """With what the workers of every attempt are forked from: the root this process was given, or one of its own."""
    inherited = os.environ.get(ROOT, "")
    pod = context.here[0]
    environment = pod_environment(os.environ, context, pod, usable_cores())
    if inherited or not commands.forks or not are_forked(context.plan.group(pod.group).device, environment):
        yield replace(context, root=ForkRoot(inherited))
        return
    path, log = context.scratch / "fork.sock", RunDirectory(context.run_dir).fork_log(pod)
    log.parent.mkdir(parents=True, exist_ok=True)
    groups = {each.group for each in context.here}
    libraries = {engine.library for engine in context.plan.engines if engine.group in groups}
    preload = preload_for({context.plan.group(name).device for name in groups}, libraries)
    with fork_root(environment, preload, path, log) as pid:
        yield replace(context, root=ForkRoot(str(path), frozenset({pid})))
