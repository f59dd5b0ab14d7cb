"""What is asked of a gang, whether its pods are all on this machine or each on its own."""

from typing import Protocol

from rljob_worker.local.pods.pods import GangEnd
from rljob_worker.local.services import Services


class AnyGang(Protocol):
    """The processes of one attempt, wherever they are: `start`, `poll` until it returns a GangEnd, `end`."""

    serving_seconds: float | None
    """How long data buffers took until all of them served; None until they do."""

    def start(self) -> None: ...

    def poll(self) -> GangEnd | None:
        """Take notice of what happened since the last call; the end, once there is one."""

    def hear_requests(self) -> int:
        """How often one of the machines, this one aside, was asked to stop."""

    def stop(self) -> None:
        """Ask the workers to checkpoint and end."""

    def end(self) -> None:
        """End what still runs."""

    def metrics_url(self) -> str: ...


class AnyGangs(Protocol):
    """Where gangs come from, and what runs beside them over all attempts."""

    @property
    def services(self) -> Services:
        """Those of the job, which may be none."""

    def hear_requests(self) -> int:
        """How often one of the machines, this one aside, was asked to stop, while no gang is there to say so. Listens:
        a machine that hangs up meanwhile is missed when the next gang starts."""

    def gang(self, attempt: int, resume: str) -> AnyGang:
        """resume: what workers start from: auto, never, or a step."""
