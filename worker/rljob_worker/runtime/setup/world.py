"""The rendezvous of a worker group's ranks: `init_process_group` of torch.distributed, called in this one place.

Rank 0 opens a TCPStore on a port the system chooses and posts it to its sidecar, where the others ask, so no port
is planned, and two jobs on one machine never meet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from rljob_api.planning.plan import GroupPlan
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.lost_peer import tells_of_lost_peer

_POLL_SECONDS = 0.05

log = logging.getLogger(__name__)


class StatusChannel(Protocol):
    """The part of the data buffer client that rendezvous uses."""

    def set_status(self, status: dict[str, Any]) -> None: ...

    def peer_status(self, group: str, host: int, *, rank: int | None = None) -> dict[str, Any]: ...


@contextmanager
def world(
    channel: StatusChannel,
    group: GroupPlan,
    rank: int,
    *,
    host: str,
    attempt: int,
    deadline_seconds: float,
    first: tuple[int, int] = (0, 0),
) -> Iterator[str]:
    """Joins the group's world for the length of the block, and gives the address, `host:port`, of its store.

    first: index of the host of rank 0 of the world, and its rank in the group: a guest is a world of its own.

    Raises DeadlineExceeded when rank 0 does not show up, and PeerLost where a collective of the block fails because
    another process is gone: its own end is the cause, this is an echo of it.
    """
    timeout = timedelta(seconds=deadline_seconds)
    if rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        channel.set_status({"store_port": store.port})
    else:
        port = wait_for_port(
            lambda: channel.peer_status(group.name, first[0], rank=first[1]), group.name, deadline_seconds
        )
        store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
    dist.init_process_group(
        group.backend,
        store=dist.PrefixStore(f"{group.name}-{attempt}", store),
        rank=rank,
        world_size=group.num_workers,
        timeout=timeout,
    )
    try:
        yield f"{host}:{store.port}"
    except BaseException as error:
        cause = _cause_of(error, group.name)
        log.error("worker %s/%d leaves the group's world: %s: %s", group.name, rank, type(cause).__name__, cause)
        # not destroyed: NCCL would wait for collectives that a lost peer never joins, up to their timeout
        with suppress(RuntimeError, ValueError):  # a back end may have nothing to abort: the cause is what counts
            dist.distributed_c10d._abort_process_group()
        if cause is error:
            raise
        raise cause from error
    dist.destroy_process_group()


def _cause_of(error: BaseException, group: str) -> BaseException:
    """PeerLost for a collective that failed because another process is gone; else the error itself."""
    if not isinstance(error, RuntimeError) or not tells_of_lost_peer(error):
        return error
    return PeerLost(f"a collective of worker group {group} lost a peer: {str(error).partition(chr(10))[0]}")


def wait_for_port(ask: Callable[[], dict[str, Any]], group: str, deadline_seconds: float) -> int:
    """The port rank 0 of the group has posted."""
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        port = ask().get("store_port")
        if port is not None:
            return int(port)
        time.sleep(_POLL_SECONDS)
    raise DeadlineExceeded(
        f"worker {group}/0 posted no rendezvous address within {deadline_seconds:.0f} s; it has not started, or "
        "failed: see its log"
    )


def wait_for_address(addresses: AddressBook, host: Host, deadline_seconds: float) -> str:
    """The host name of a pod; a local address book may appear late."""
    end = time.monotonic() + deadline_seconds
    while (address := addresses.find(host)) is None:
        if time.monotonic() > end:
            raise DeadlineExceeded(f"the address of pod {host} is not known after {deadline_seconds:.0f} s")
        time.sleep(0.05)
    return address.rpartition(":")[0]
