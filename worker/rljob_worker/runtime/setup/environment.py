"""The identity of this process: the variables of the worker's environment, read once and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.vocabulary import keys
from rljob_worker.data.source import DataAccess
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.databuffer.links.token import read_token
from rljob_worker.errors import InvalidJob
from rljob_worker.rundir.ownership import Owner
from rljob_worker.rundir.plan import read_plan
from rljob_worker.storage.paths import StoragePath, storage_path


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """Parsed environment of one worker (`rljob_api.vocabulary.keys` lists the variables)."""

    plan: Plan
    group: str
    host_index: int
    local_rank: int
    attempt: int
    peers: str
    buffer_socket: str
    token: str
    run_dir: Path
    resume: str
    run_id: str = ""
    """On a cluster the uid of the RLJob."""
    store: str = ""
    """Folder of an object store for checkpoints, in place of the run directory."""
    keeps_checkpoints: bool = True
    """False where the ranks' parts of a checkpoint would lie on different disks."""

    @property
    def group_plan(self) -> GroupPlan:
        return self.plan.group(self.group)

    @property
    def home(self) -> StoragePath:
        """What holds the run's checkpoints and says to whom it belongs."""
        return storage_path(self.store) if self.store else self.run_dir

    @property
    def owner(self) -> Owner:
        """The owner as which this process writes to the run directory."""
        return Owner(self.attempt, self.run_id)

    @property
    def data_access(self) -> DataAccess:
        """Patience with a store ends before the others' with this rank: half the deadline."""
        seconds = self.plan.spec.data_buffer.deadline_seconds / 2
        return DataAccess(self.run_dir / "cache", f"{self.run_id}.{self.attempt}", StoreRetryPolicy(seconds))

    @property
    def rank(self) -> int:
        """Rank inside the worker group."""
        return self.host_index * self.group_plan.workers_per_host + self.local_rank

    @property
    def ordinal(self) -> int:
        """Number of the worker over all groups."""
        return self.plan.worker_offset(self.group) + self.rank

    @property
    def is_lead(self) -> bool:
        return self.group == self.plan.lead_group and self.rank == 0

    @property
    def name(self) -> str:
        return f"{self.group}/{self.rank}"

    @staticmethod
    def read(environ: Mapping[str, str] = os.environ) -> WorkerEnvironment:
        """Raises InvalidJob naming the variable that is missing or wrong."""
        token = read_token(environ)
        return WorkerEnvironment(
            plan=read_plan(Path(_required(environ, keys.ENV_PLAN))),
            group=_required(environ, keys.ENV_GROUP),
            host_index=_integer(environ, keys.ENV_HOST_INDEX),
            local_rank=_integer(environ, keys.ENV_LOCAL_RANK),
            attempt=_integer(environ, keys.ENV_ATTEMPT),
            peers=_required(environ, keys.ENV_PEERS),
            buffer_socket=_required(environ, keys.ENV_BUFFER),
            token=token,
            run_dir=Path(_required(environ, keys.ENV_RUN_DIR)),
            resume=environ.get(keys.ENV_RESUME, "auto"),
            run_id=environ.get(keys.ENV_RUN_ID, ""),
            store=environ.get(keys.ENV_RUN_HOME, ""),
            keeps_checkpoints=environ.get(keys.ENV_CHECKPOINTS, "on") != "off",
        )


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise InvalidJob(f"the environment variable {name} is not set; workers are started by the launcher")
    return value


def _integer(environ: Mapping[str, str], name: str) -> int:
    value = _required(environ, name)
    if not value.isdigit():
        raise InvalidJob(f"the environment variable {name} is {value!r}, expected a whole number")
    return int(value)
