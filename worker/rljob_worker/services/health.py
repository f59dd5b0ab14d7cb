"""Whether the applications of a job answer, as Ray Serve says, from their start to the end of the job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import DeadlineExceeded, InvalidJob, PeerLost

LOOK_SECONDS = 0.25
"""Between two looks while an application is not healthy."""

CALM_SECONDS = 2.0
"""Seconds between two looks while all applications are healthy."""

SILENCE_SECONDS = 60.0
"""How long Ray Serve may not say how they are: its controller starts again by itself, and requests go on meanwhile."""

_log = logging.getLogger(__name__)

Applications = Callable[[], Mapping[str, Any]]
"""Name -> what has `status`, `message` and `deployments`, as `serve.status().applications`; what it raises is
Ray's."""


def changes_of_health(
    services: Sequence[ServiceSpec],
    applications: Applications,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Whether all are healthy, each time that this changes; they begin as not healthy.

    Raises InvalidJob: one cannot be started. DeadlineExceeded: one is not healthy for longer than its healthSeconds.
    PeerLost: Ray Serve has given one up that was healthy, or says nothing.
    """
    watched = [_Watched(service, clock()) for service in services]
    reported, heard = False, clock()
    while True:
        try:
            result = applications()
        except Exception as error:  # Ray has many, and its controller comes back
            if clock() - heard > SILENCE_SECONDS:
                raise PeerLost(f"Ray Serve does not say how its applications are: {error}") from error
        else:
            heard = clock()
            is_healthy = all([item.look(result.get(item.name), heard) for item in watched])
            if is_healthy is not reported:
                reported = is_healthy
                yield reported
        pause(CALM_SECONDS if reported else LOOK_SECONDS)


class _Watched:
    """One service, from look to look."""

    def __init__(self, service: ServiceSpec, now: float) -> None:
        self.name = service.name
        self._service = service
        self._was_healthy = False
        self._unhealthy_since: float | None = now

    def look(self, application: Any, now: float) -> bool:
        """Whether it is healthy; raises as `changes_of_health`."""
        status = "NOT_STARTED" if application is None else application_status(application)
        if status == "RUNNING" or (self._was_healthy and application is not None and answers(application)):
            self._was_healthy, self._unhealthy_since = True, None
            return True
        said = (
            "it says nothing"
            if application is None
            else shortened(application_message(application)) or "it says nothing"
        )
        if self._unhealthy_since is None:
            self._unhealthy_since = now
            _log.warning('service "%s" was healthy, and is %s: %s', self.name, status, said)
        if status == "DEPLOY_FAILED":
            self._given_up(said)
        if now - self._unhealthy_since > self._service.health_seconds:
            raise DeadlineExceeded(
                f"{self._title} is {status} and not healthy after healthSeconds "
                f"{self._service.health_seconds:g}: {said}"
            )
        return False

    def _given_up(self, said: str) -> None:
        """One that never ran will not run the next time either."""
        if not self._was_healthy:
            raise InvalidJob(f"{self._title} does not start: {said}")
        raise PeerLost(f"{self._title} was healthy, and does not start again: {said}")

    @property
    def _title(self) -> str:
        return f'service "{self.name}" ({self._service.run})'


def application_status(application: Any) -> str:
    """As Ray Serve spells it."""
    return str(getattr(application.status, "value", application.status))


def answers(application: Any) -> bool:
    """Whether a copy of each deployment runs: the others are started again meanwhile."""
    deployments = list(application.deployments.values())
    return bool(deployments) and all(deployment.replica_states.get("RUNNING", 0) for deployment in deployments)


def application_message(application: Any) -> str:
    """What its deployments say, where the errors of their constructors are; else what is said of it as a whole."""
    said = [deployment.message for deployment in application.deployments.values() if deployment.message]
    return "\n".join(said) or str(application.message)


def shortened(message: str, num_lines: int = 5) -> str:
    """The last lines of what Ray Serve says, where a traceback has its error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[-num_lines:])
