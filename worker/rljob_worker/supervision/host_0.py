"""`python -m rljob_worker.supervision.host_0 ORDERS`: host 0's own pod, in a process next to the supervising one.

So host 0 is a host like any other: it comes, is commanded, and can be lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rljob_api.planning.plan import Plan
from rljob_worker.local.pods.pods import Commands
from rljob_worker.process.child import Child, command_of
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.storage.paths import storage_path
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Hello
from rljob_worker.supervision.hosts.secret import launch_token
from rljob_worker.supervision.member import Member, host_context

MODULE = "rljob_worker.supervision.host_0"
EXIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host does in a launch; JSON between the two processes of host 0."""

    membership: Membership
    hello: Hello
    run_dir: str
    home: str
    """Home of checkpoints; empty: the run directory."""
    code: str
    commands: Commands
    seconds: float


@contextlib.contextmanager
def host_0_process(orders: Orders, log: Path, was_dismissed: Callable[[], bool]) -> Iterator[None]:
    """It ends when host 0 dismisses it, or hangs up; the block waits for that. One that had not come yet is ended."""
    command = [*command_of(MODULE), msgspec.json.encode(orders).decode()]
    process = Child(command, os.environ, output=log, death_signal=signal.SIGTERM)
    try:
        yield
    finally:
        if not was_dismissed():
            process.signal(signal.SIGTERM)
        process.end_lifeline(EXIT_SECONDS)
        process.kill()


def main(arguments: list[str]) -> int:
    orders = msgspec.json.decode(arguments[0], type=Orders)
    directory = RunDirectory(Path(orders.run_dir), storage_path(orders.home) if orders.home else None)
    plan = Plan.model_validate_json(directory.plan.read_bytes())
    token = launch_token(os.environ)
    member = Member(orders.membership, orders.hello, token, orders.seconds)
    with host_context(orders.membership, plan, directory, Path(orders.code), token, orders.commands.forks) as context:
        end = member.run(context, orders.commands)
    print(f"host 0: {end.words}", flush=True)
    return end.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
