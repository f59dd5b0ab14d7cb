"""`rljob launch`: one of the launchers of a job on many machines."""

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import InvalidJobError
from rljob_worker.cli.jobfile import JobFile, missing_files, open_job, planned, read_text
from rljob_worker.cli.output import say
from rljob_worker.cli.run import LocalRun, command_line, report_end, supervise, view_of
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.errors import RLJobError
from rljob_worker.forkserver.client import Root
from rljob_worker.local.lifetime import MAX_TEMPORARY_PATH_OF_SERVICES, lifetime
from rljob_worker.local.pods.pods import Commands
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.process.stop_requests import heeded
from rljob_worker.rehearsal.machine.machine import findings_here
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.rundir.home import home_of
from rljob_worker.supervision.gang import GangFactory, Hosts
from rljob_worker.supervision.host_0 import Orders, host_0_process
from rljob_worker.supervision.hosts.compatibility import Expected, sections_of
from rljob_worker.supervision.hosts.machine import is_here
from rljob_worker.supervision.hosts.membership import LINES, Membership, hosts_in, membership_of
from rljob_worker.supervision.hosts.messages import Hello
from rljob_worker.supervision.hosts.rendezvous import Rendezvous, Stopped, rendezvous
from rljob_worker.supervision.hosts.secret import launch_token, services_token
from rljob_worker.supervision.member import Member, host_context, pod_at
from rljob_worker.supervision.session import MARK_FILE


@dataclass(frozen=True, slots=True)
class Launching:
    """What the command line asks for."""

    path: Path
    overrides: Sequence[str]
    runs_dir: Path
    resume: str | None
    seconds: float
    """How long hosts wait for each other."""
    commands: Commands

    def open(self) -> JobFile:
        return open_job(self.path, self.overrides)


def launch_job(asked: Launching, rank_file: Path | None) -> int:
    """This host's part of the job, to its end; returns the exit code, which is that of all hosts."""
    hosts = hosts_in(read_text(rank_file, "a rank file", LINES), str(rank_file)) if rank_file else ()
    membership, token = membership_of(os.environ, hosts, is_here), launch_token(os.environ)
    return _supervise(asked, membership, token) if membership.host == 0 else _take_part(asked, membership, token)


def _supervise(asked: Launching, membership: Membership, token: str) -> int:
    """Host 0. However it ends, the others exit with its code and message."""
    end = (int(ExitCode.BUG), "host 0 ended with a bug of ours; see its output")
    # Hangs up before its own member is waited for: one that has only just joined gets no other notice of the end.
    with contextlib.ExitStack() as stack, rendezvous(membership, token, asked.seconds, partial(say, err=True)) as met:
        try:
            end = _led(asked, met, stack)
        except KeyboardInterrupt:
            end = (int(ExitCode.INTERRUPTED), "host 0 was asked to stop")
            raise
        except (RLJobError, InvalidJobError) as error:
            end = (int(error.exit_code), str(error))
            raise
        except Stopped as error:
            say(f"rljob: {error}", err=True)
            end = (int(ExitCode.INTERRUPTED), str(error))
        finally:
            met.dismiss(*end)
    return end[0]


def _led(asked: Launching, met: Rendezvous, stack: contextlib.ExitStack) -> tuple[int, str]:
    """Exit code, and why."""
    file = asked.open()
    gangs = _gangs_of(asked, file, met, stack)
    run = LocalRun(file, asked.runs_dir, asked.resume, view_of, lambda plan: [pod_at(met.membership, plan)], gangs)
    directory, note = supervise(run)
    code = report_end(directory, note, command_line("launch", asked.path, asked.overrides, asked.runs_dir))
    return code, (note.cause if note else "") or ExitCode(code).meaning


def _gangs_of(
    asked: Launching, file: JobFile, met: Rendezvous, stack: contextlib.ExitStack
) -> Callable[[RunDirectory, Plan], contextlib.AbstractContextManager[GangFactory]]:
    """Once all hosts are there. stack: what stays until they have been dismissed."""

    @contextlib.contextmanager
    def gangs(directory: RunDirectory, plan: Plan) -> Iterator[GangFactory]:
        hello = _hello(met.membership, file, plan, ())
        home = directory.home_elsewhere
        mark = secrets.token_hex(16)
        directory.write(directory.path / MARK_FILE, mark)
        orders = Orders(met.membership, hello, str(directory.path), home, str(file.code), asked.commands, asked.seconds)
        expected = Expected(met.membership.num_hosts, hello.version, hello.job, hello.sections, hello.plan)
        with SignalPipe(heeded()) as signals:
            log = directory.path / "logs" / "host-0.log"
            stack.enter_context(host_0_process(orders, log, lambda: 0 in met.dismissed))
            met.gather(expected, signals)
        say(
            f"all {met.membership.num_hosts} hosts are here"
            if met.membership.num_hosts > 1
            else "the only host is here"
        )
        with _services(asked, file, met, directory, plan) as services:
            tree = JobTree.of(plan)
            pods = [(tree.host(number),) for number in range(met.membership.num_hosts)]
            yield GangFactory(Hosts(met.connections, pods, met.called), plan, "" if home else mark, services)

    return gangs


@contextlib.contextmanager
def _services(
    asked: Launching, file: JobFile, met: Rendezvous, directory: RunDirectory, plan: Plan
) -> Iterator[Services]:
    """Beside host 0's own pod, where the others reach it; nothing of them outlives the block."""
    with lifetime(MAX_TEMPORARY_PATH_OF_SERVICES) as scope:
        here, address = (pod_at(met.membership, plan),), met.connections.address_of(0)
        token = services_token(launch_token(os.environ))
        logs, mark, lifeline = directory.supervisor_log.parent, scope.services_mark, scope.lifeline
        folders = (directory.plan, logs, scope.scratch, file.code)
        place = ServicesPlace(plan, *folders, mark, lifeline, here, token, address)
        # it ends what is left of them once this process is gone
        root = Root(os.environ, (), scope.scratch / "root.sock", None, scope.scratch, (scope.services_mark,))
        with contextlib.closing(root), contextlib.closing(Services(place, asked.commands.services)) as services:
            yield services


def _take_part(asked: Launching, membership: Membership, token: str) -> int:
    """Any other host. It reports what is wrong with it to host 0, which notifies all others."""
    with contextlib.ExitStack() as stack:
        context, hello = None, _hello(membership, None, None, ())
        try:
            file = asked.open()
            plan = _planned(file)
            hello = _hello(membership, file, plan, _flaws(file, asked.runs_dir, membership, plan))
            directory = RunDirectory(asked.runs_dir / file.job.name, home_of(file.job))
            context = stack.enter_context(
                host_context(membership, plan, directory, file.code, token, asked.commands.forks)
            )
        except (RLJobError, InvalidJobError) as error:
            hello = _hello(membership, None, None, (str(error),))
        end = Member(membership, hello, token, asked.seconds).run(context, asked.commands)
    if end.code != ExitCode.DONE:
        say(f"rljob: {end.words}", err=True)
    return end.code


def _planned(file: JobFile) -> Plan:
    """What host 0 rehearses for all is not rehearsed here. Raises InvalidJobError."""
    problems = [*file.problems, *file.located(missing_files(file.job, file.folder))]
    plan, result = (None, ()) if problems else planned(file)
    if plan is None:
        raise InvalidJobError([*problems, *result])
    return plan


def _flaws(file: JobFile, runs_dir: Path, membership: Membership, plan: Plan) -> tuple[str, ...]:
    findings = findings_here(plan, [pod_at(membership, plan)], os.environ, runs_dir / file.job.name, serves=False)
    return tuple(str(item.problem) for item in findings)


def _hello(membership: Membership, file: JobFile | None, plan: Plan | None, flaws: tuple[str, ...]) -> Hello:
    return Hello(
        host=membership.host,
        num_hosts=membership.num_hosts,
        name=socket.gethostname(),
        version=version("rljob"),
        job=file.job.name if file else "",
        sections=sections_of(file.job) if file else {},
        plan=plan.hash() if plan else "",
        flaws=flaws,
    )
