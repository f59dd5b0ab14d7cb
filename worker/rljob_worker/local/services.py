"""The services of a run: one process that starts Ray Serve with all of them, watched over all attempts."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.process_environment import WORKER_DEFAULTS
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.local.pods.environment import LOOPBACK, job_variables
from rljob_worker.local.pods.pods import GangEnd
from rljob_worker.process.child import LoggedChild
from rljob_worker.process.last_words import TERMINATION_FILE, LastWords, read_last_words
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.process.marked_processes import ENV_MARK, end_marked_processes
from rljob_worker.visible_devices import service_variables

NAME = "services"

RAY_SECONDS = 300.0
"""What Ray itself may take to start, many times over, on a machine that is very busy; then healthSeconds begin."""

TOKEN_FILE = "services-token"
"""In the scratch directory of the process that serves or asks."""

SHOWN_LINES = 5
"""Lines shown of the log of a process that left no last words."""


@dataclass(frozen=True, slots=True)
class ServicesPlace:
    """What the services of a run are started with."""

    plan: Plan
    plan_path: Path
    logs: Path
    """A folder, which is there."""
    scratch: Path
    """Short path: Ray keeps sockets of its own in there."""
    code_dir: Path
    mark: str
    """Mark of every process of the services, which live longer than an attempt."""
    lifeline: int
    here: tuple[Host, ...]
    """The pods that run on this machine, too, whose accelerators services leave to them."""
    token: str
    """What workers show, and nobody else has."""
    address: str = LOOPBACK
    """By which workers reach them."""


class Services:
    """`start`, then `poll` until `are_healthy`; after that `look` starts again what has ended. Without services in the
    job nothing is ever started."""

    def __init__(self, place: ServicesPlace, command: Sequence[str]) -> None:
        self._place = place
        self._command = command
        self._process: LoggedChild | None = None
        self._num_starts = 0
        self._port = 0
        self._token = place.scratch / TOKEN_FILE

    @property
    def are_wanted(self) -> bool:
        return bool(self._place.plan.spec.services)

    @property
    def log(self) -> Path:
        """Log of the last start."""
        return self._place.logs / f"{NAME}-{self._num_starts}.log"

    @property
    def are_healthy(self) -> bool:
        """Whether all of them answered once since the last start."""
        ready = None if self._process is None else self._process.ready()
        if ready is None:
            return not self.are_wanted
        self._port = ready["port"]
        return True

    @property
    def urls(self) -> dict[str, str]:
        """Where each answers; once they are healthy. A start after that takes the same port."""
        names = (service.name for service in self._place.plan.spec.services)
        return {name: f"http://{self._place.address}:{self._port}/{name}" for name in names}

    def start(self) -> bool:
        """Unless they run, or there are none; whether they were started."""
        if not self.are_wanted or (self._process is not None and self._process.code() is None):
            return False
        self._end_processes()
        if not self._num_starts:
            write_token(self._token, self._place.token)
        self._num_starts += 1
        self._words.unlink(missing_ok=True)
        self._process = LoggedChild(
            NAME,
            [*self._command, str(self._port)],
            services_environment(os.environ, self._place, self._token, self._words),
            self.log,
            lifeline_fd=self._place.lifeline,
            death_signal=signal.SIGTERM,
        )
        return True

    def poll(self) -> GangEnd | None:
        """How they ended before they were healthy; None while they may still get so."""
        code = None if self._process is None else self._process.code()
        if code is None:
            return None
        words = read_last_words(self._words) or LastWords(code, cause=last_lines(self.log))
        return GangEnd(code, NAME, words, str(self.log))

    def look(self, max_starts: int) -> str | None:
        """Start again what has ended, while the gang goes on; what to say of it. max_starts: over the whole run."""
        if self._process is None or self._process.code() is None or self._num_starts >= max_starts:
            return None
        ended = self.poll()
        assert ended is not None and ended.words is not None
        self.start()
        return f"services ended: {ended.words.cause}; starting them again while rewards wait (log: {ended.log})"

    def close(self) -> None:
        """End them with everything they started; nothing of theirs is worth a grace."""
        self._end_processes()
        self._token.unlink(missing_ok=True)

    @property
    def _words(self) -> Path:
        return self._place.scratch / "services-words.json"

    def _end_processes(self) -> None:
        if self._process is not None:
            self._process.kill()
            end_marked_processes(self._place.mark, grace_seconds=0.0)
        self._process = None


def worker_variables(urls: Mapping[str, str], token: Path) -> dict[str, str]:
    """Variables by which workers find services; there may be none."""
    return {keys.ENV_SERVICES: json.dumps(urls), keys.ENV_SERVICES_TOKEN_FILE: str(token)} if urls else {}


def most_start_seconds(plan: Plan) -> float:
    """How long others may wait, at most, for services to get healthy before they give up the process starting them."""
    longest = max((service.health_seconds for service in plan.spec.services), default=None)
    starts = 1 + plan.spec.failure_policy.max_restarts
    return 0.0 if longest is None else starts * (RAY_SECONDS + longest)


def write_token(path: Path, token: str) -> None:
    """For the eyes of this user alone."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)


def services_environment(base: Mapping[str, str], place: ServicesPlace, token: Path, words: Path) -> dict[str, str]:
    """Environment of the process that starts Ray Serve; Ray's own processes inherit it. Pure."""
    inherited = {
        name: value
        for name, value in base.items()
        if name not in keys.OWN_ENVIRONMENT and not name.startswith("RAY_")  # no cluster of another's
    }
    own = {
        keys.ENV_PLAN: str(place.plan_path),
        keys.ENV_CODE: str(place.code_dir),
        keys.ENV_SERVICES_TOKEN_FILE: str(token),
        keys.ENV_LISTEN: place.address,
        TERMINATION_FILE: str(words),
        LIFELINE_FD: str(place.lifeline),
        ENV_MARK: place.mark,
        keys.ENV_SERVICES_SCRATCH: str(place.scratch),
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # Ray's workers change their titles, and would write over the mark by which they are found
    }
    devices = service_variables(place.plan, place.here, base)
    return {**WORKER_DEFAULTS, **inherited, **devices, **job_variables(place.plan.spec), **own}


def last_lines(log: Path, count: int = SHOWN_LINES) -> str:
    """The end of a log, in one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "no last words"
