"""What this machine has for a plan: accelerators, memory, room for rows and for a checkpoint. Ports are the system's to
choose, and so never taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import format_bytes, parse_quantity
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.trackers.trackers import check_installed
from rljob_worker.rehearsal.finding import Finding, finding_of
from rljob_worker.rehearsal.machine.tools import check_serve, tool_findings
from rljob_worker.visible_devices import check_devices, check_devices_of_services


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes; None where they are not known."""

    memory: int | None
    """That processes could have, if nothing else ran."""
    shared: int | None
    """Free where data buffers lie."""
    disk: int | None
    """Free where the run writes."""


def this_machine(environment: Mapping[str, str], run_dir: Path) -> Machine:
    """As it is now. run_dir: need not be there yet."""
    arena = environment.get(keys.ENV_ARENA_DIR, keys.SHARED_MEMORY)
    return Machine(_memory_bytes(), _free_bytes(Path(arena)), _free_bytes(run_dir))


def findings_here(
    plan: Plan, here: Sequence[Host], environment: Mapping[str, str], run_dir: Path, *, serves: bool = True
) -> list[Finding]:
    """What keeps the pods `here` from running on this machine, as it is now; and the services, where it `serves`."""
    machine = this_machine(environment, run_dir)
    served = service_findings(plan, here, environment) if serves else ()
    tools = tool_findings(plan, {host.group for host in here}, environment)
    return [*tools, *machine_findings(plan, here, environment, machine), *served]


def machine_findings(
    plan: Plan, here: Sequence[Host], environment: Mapping[str, str], machine: Machine
) -> list[Finding]:
    """What keeps the pods `here` from running on one machine."""
    checks = (
        ("spec.workerGroups", lambda: check_devices(plan, here, environment)),
        ("spec.monitoring.trackers", lambda: check_installed(plan.spec.monitoring.trackers)),
    )
    return [*_failed(checks), *shortages(plan, here, machine)]


def service_findings(plan: Plan, here: Sequence[Host], environment: Mapping[str, str]) -> list[Finding]:
    """What keeps the services from running beside the pods `here`."""
    checks = (
        ("spec.services", lambda: check_serve(plan)),
        ("spec.services", lambda: check_devices_of_services(plan, here, environment)),
    )
    return list(_failed(checks))


def _failed(checks: Iterable[tuple[str, Callable[[], object]]]) -> Iterator[Finding]:
    """Those that raise, by the field that they are about."""
    for path, check in checks:
        try:
            check()
        except InvalidJob as error:
            yield finding_of(path, error)


def shortages(plan: Plan, here: Sequence[Host], machine: Machine) -> Iterator[Finding]:
    """Pure: too little memory, shared memory or disk for the pods `here`."""
    buffers = len(here) * parse_quantity(plan.spec.data_buffer.memory)
    if machine.shared is not None and buffers > machine.shared:
        message = f"{_hosts(len(here))} takes {format_bytes(buffers)} of shared memory, of which "
        message += f"{format_bytes(machine.shared)} are free here"
        fix = "Lower it, end what holds shared memory, or make it larger: mount -o remount,size=... /dev/shm; or name "
        fix += f"another directory, of memory or of a local disk, in {keys.ENV_ARENA_DIR}."
        yield Finding(Problem("spec.dataBuffer.memory", plan.spec.data_buffer.memory, message, fix))
    workers = _peak_bytes_on_cpus(plan, here)
    if machine.memory is not None and workers > machine.memory:
        message = f"workers on CPUs take {format_bytes(workers)} together, and this machine has "
        message += format_bytes(machine.memory)
        fix = "`rljob plan` says what takes it: lower training.tokensPerMicroBatch or the number of workers, or take a "
        fix += "smaller model."
        yield Finding(Problem("spec.workerGroups", "", message, fix))
    checkpoint = _checkpoint_bytes(plan)
    if machine.disk is not None and checkpoint > machine.disk:
        message = f"a checkpoint takes {format_bytes(checkpoint)}, and {format_bytes(machine.disk)} are free here"
        fix = "Free the disk, or choose another --runs-dir."
        yield Finding(Problem("spec.checkpoint", "", message, fix), ExitCode.STORAGE)


def _hosts(count: int) -> str:
    return "a host" if count == 1 else f"each of {count} hosts takes as much, which"


def _peak_bytes_on_cpus(plan: Plan, here: Sequence[Host]) -> int:
    """Peak bytes of all workers that share this machine's memory; 0 where the plan does not know."""
    of_group = {item.group: max((phase.peak for phase in item.phases), default=0) for item in plan.memory}
    groups = [plan.group(pod.group) for pod in here]
    return sum(of_group.get(group.name, 0) * group.workers_per_host for group in groups if group.device == "cpu")


def _checkpoint_bytes(plan: Plan) -> int:
    """Weights and optimizer of all workers, of which one checkpoint is made."""
    held = {
        item.group: max((phase.optimizer + phase.host for phase in item.phases), default=0)
        for item in plan.memory
        if item.phases
    }
    return sum(held.get(group.name, 0) * group.num_workers for group in plan.gang)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _free_bytes(place: Path) -> int | None:
    """Free bytes of the file system that a place is on, or will be."""
    there = next((item for item in (place, *place.absolute().parents) if item.exists()), None)
    if there is None:
        return None
    disk = os.statvfs(there)
    return disk.f_bavail * disk.f_frsize
