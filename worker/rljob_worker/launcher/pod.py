"""Who this pod is: read once from the environment and the plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_worker.errors import InvalidJob
from rljob_worker.launcher.preloading import PRELOAD, preload_for

LOG_DIR = "RLJOB_LOG_DIR"
"""A folder for a file per worker; unset where nobody but `kubectl logs` reads them."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """One host of one worker group."""

    group: str
    host: int
    num_workers: int
    attempt: int
    log_dir: Path | None
    """One file per worker here; None: workers write to this process's output, where `kubectl logs` reads."""
    metrics_port: int
    """0: the system chooses and only this machine can connect."""
    device: str = "cpu"
    """The workers' torch device type."""
    preload: tuple[str, ...] = (PRELOAD,)
    """Modules that are imported once for all of them."""

    def rank(self, local_rank: int) -> int:
        """The worker's number in its group."""
        return self.host * self.num_workers + local_rank

    def worker_name(self, local_rank: int) -> str:
        """The name of a worker's files, such as `train-0-3`: group, host, rank."""
        return f"{self.group}-{self.host}-{self.rank(local_rank)}"


def pod_from(environment: Mapping[str, str]) -> PodIdentity:
    """The pod that `environment` describes; raises InvalidJob naming the variable that is missing or wrong."""
    group = _required(environment, keys.ENV_GROUP)
    # a launcher needs two words of it: `Plan` would be three quarters of its imports
    plan = json.loads(Path(_required(environment, keys.ENV_PLAN)).read_bytes())
    (planned,) = (item for item in plan["groups"] if item["name"] == group)
    libraries = {item["library"] for item in plan["engines"] if item["group"] == group}
    log_dir = environment.get(LOG_DIR)
    return PodIdentity(
        group=group,
        host=_number(environment, keys.ENV_HOST_INDEX),
        num_workers=planned["workersPerHost"],
        device=planned["device"],
        preload=preload_for({planned["device"]}, libraries),
        attempt=_number(environment, keys.ENV_ATTEMPT),
        log_dir=Path(log_dir) if log_dir else None,
        metrics_port=_number(environment, keys.ENV_METRICS_PORT) if environment.get(keys.ENV_METRICS_PORT) else 0,
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise InvalidJob(f"{name} is not set: a launcher is started by `rljob run` or by the operator, which set it")
    return environment[name]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _required(environment, name)
    if not text.isdecimal():
        raise InvalidJob(f"{name} is {text!r}, expected a whole number from 0")
    return int(text)
