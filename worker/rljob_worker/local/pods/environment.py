"""The environment of every process of a run. Pure: takes this process's environment, gives theirs."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.planning.plan import Plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.process_environment import WORKER_DEFAULTS
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.forkserver.client import ForkServer, Root
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.launcher.pod import LOG_DIR
from rljob_worker.process.last_words import TERMINATION_LOG
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.process.marked_processes import ENV_MARK
from rljob_worker.rundir.directory import SPILL, RunDirectory
from rljob_worker.visible_devices import share_of

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOOPBACK = "127.0.0.1"
"""Where the pods of one machine find each other."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all processes of one attempt on a machine share."""

    plan: Plan
    plan_path: Path
    run_dir: Path
    home: str
    """Folder of an object store for checkpoints; empty: the run directory."""
    scratch: Path
    """Short path for sockets and the address book: a UNIX socket's path has at most 107 bytes."""
    token: Path
    code_dir: Path
    """The YAML's folder, where the user's modules are."""
    mark: str
    lifeline: int
    here: tuple[Host, ...]
    """The pods of the gang that run on this machine."""
    guests: tuple[Host, ...] = ()
    """Pods of the elastic group that run here beside them."""
    root: Root | None = None
    """What launchers are forks of, or programs started by; None: there is none yet."""
    inherited_root: str = ""
    """The socket of one that this process was given, which is asked first."""
    attempt: int = 0
    resume: str = "never"
    """What workers start from: auto, never, or a step."""
    address: str = LOOPBACK
    """By which other machines reach this one's data buffers."""
    interface: str = ""
    """The network interface with that address; empty: not known."""
    services: Mapping[str, str] = field(default_factory=dict)
    """Variables by which workers reach the job's services."""

    @property
    def log_dir(self) -> Path:
        return RunDirectory(self.run_dir).logs(self.attempt)

    @property
    def address_book(self) -> Path:
        return self.scratch / f"peers-{self.attempt}.json"

    @property
    def certificates(self) -> Path:
        """Holds a directory for each host."""
        return self.scratch / f"tls-{self.attempt}"

    def connect(self) -> ForkServer:
        """To a root."""
        if self.inherited_root:
            with contextlib.suppress(OSError):
                return ForkServer(Path(self.inherited_root))
        assert self.root is not None, "a run has a root before it has launchers"
        return self.root.connect()

    def socket(self, pod: Host) -> Path:
        return self.scratch / f"{pod}-{self.attempt}.sock"


def pod_environment(base: Mapping[str, str], context: RunContext, pod: Host, cores: int) -> dict[str, str]:
    """Environment of the processes of one pod."""
    own = _identity(context, pod)
    if context.home:
        own[keys.ENV_RUN_HOME] = context.home
    if spills_to_run_directory(context.plan):
        own[keys.ENV_SPILL_DIR] = str(context.run_dir / SPILL)
    if context.plan.spec.data_buffer.tls:
        own[keys.ENV_TLS_DIR] = str(context.certificates / str(pod))
    base = {**WORKER_DEFAULTS, **{name: value for name, value in base.items() if name not in _NOT_HANDED_ON}}
    if context.interface:
        base.setdefault("GLOO_SOCKET_IFNAME", context.interface)  # the host's name may resolve to loopback
    users = job_variables(context.plan.spec)
    here = (*context.here, *context.guests)
    num_workers = sum(context.plan.group(item.group).workers_per_host for item in here)
    threads = thread_variables({**base, **users}, num_workers, cores)
    return {**base, **threads, **device_variables(base, context.plan, here, pod), **users, **own}


_NOT_HANDED_ON = keys.OWN_ENVIRONMENT - {keys.ENV_ARENA_DIR} | keys.RANK_ENVIRONMENT | {ROOT}


def _identity(context: RunContext, pod: Host) -> dict[str, str]:
    return {
        keys.ENV_PLAN: str(context.plan_path),
        keys.ENV_GROUP: pod.group,
        keys.ENV_HOST_INDEX: str(pod.index),
        keys.ENV_ATTEMPT: str(context.attempt),
        keys.ENV_PEERS: str(context.address_book),
        keys.ENV_BUFFER: str(context.socket(pod)),
        keys.ENV_LISTEN: context.address,
        keys.ENV_TOKEN_FILE: str(context.token),
        keys.ENV_RUN_DIR: str(context.run_dir),
        keys.ENV_METRICS_PORT: "0",
        keys.ENV_REHEARSED: "1",
        keys.ENV_RESUME: context.resume,
        LOG_DIR: str(context.log_dir),
        TERMINATION_LOG: str(termination_log_of(context.log_dir, pod)),
        LIFELINE_FD: str(context.lifeline),
        ENV_MARK: context.mark,
        keys.ENV_CODE: str(context.code_dir),
        "PYTHONUNBUFFERED": "1",
        **context.services,
    }


def spills_to_run_directory(plan: Plan) -> bool:
    """Whether rows may go to the disk of the run's directory."""
    spill = plan.spec.data_buffer.spill
    return spill is not None and spill.directory is None


def termination_log_of(log_dir: Path, pod: Host) -> Path:
    """Where a pod's launcher leaves the last words of the worker that explains its end."""
    return log_dir / f"termination-{pod}.json"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_variables(environment: Mapping[str, str], num_workers: int, cores: int) -> dict[str, str]:
    """Share the cores among the workers of this machine, unless the user says otherwise.

    Without it each of n workers starts as many threads as there are cores, and they all get slower.
    """
    if any(name in environment for name in THREAD_VARIABLES):
        return {}
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, cores // num_workers)))


def device_variables(base: Mapping[str, str], plan: Plan, here: Sequence[Host], pod: Host) -> dict[str, str]:
    """The variable that gives the pod its share of the accelerators of its machine. Nothing for CPUs."""
    profile = DEFAULT.get(plan.group(pod.group).profile)
    if profile is None or profile.visible_devices_env is None:
        return {}
    return {**profile.env, profile.visible_devices_env: ",".join(share_of(plan, here, pod, profile, base))}


def users_environment(base: Mapping[str, str], spec: RLJobSpec, code_dir: Path) -> dict[str, str]:
    """In which the user's modules are imported before there are pods."""
    return {**WORKER_DEFAULTS, **base, **job_variables(spec), keys.ENV_CODE: str(code_dir)}


def job_variables(spec: RLJobSpec) -> dict[str, str]:
    """`spec.env` on one machine: plain values. What a cluster takes from a Secret is inherited, if set."""
    return {variable.name: variable.value for variable in spec.env if variable.value is not None}


def missing_variables(base: Mapping[str, str], plan: Plan) -> list[str]:
    """Variables of `spec.env` that only a cluster could fill and that are not set here."""
    return [variable.name for variable in plan.spec.env if variable.value is None and variable.name not in base]
