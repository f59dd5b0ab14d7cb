"""A broadcast group: one source of weights and the receivers of one rank of every copy, on a process group of its own.

Such a group reaches across worker groups, each with a torch.distributed world of its own. Its members meet at a
store that the lead keeps, under a name that no other attempt and no other group has. The ranks that train and do not
send are in none.

Their cost at 1,024 hosts: each is one more communicator on a rank that receives. One group of all sources
with alternating roots would be one communicator only, but a broadcast brings everything to every member: each source
would take in the whole model from the others. A group each costs the receivers a few communicators, so that sources
are few (`MAX_SOURCES`), and leaves every byte where it is needed. NCCL connects neighbours of its rings and trees only;
gloo connects every member with every other, which is for tests and for small groups of CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rljob_worker.errors import PeerLost
from rljob_worker.lost_peer import tells_of_lost_peer

SOURCE = 0
"""Number of the source in its group; receivers follow."""


class BroadcastGroup:
    """One member's end of it."""

    def __init__(self, group: Any, name: str) -> None:
        """name: for messages, such as `source train/0 of weights/actor`."""
        self._group, self.name = group, name

    @staticmethod
    def join(
        meeting: str, key: str, member: int, size: int, *, backend: str, seconds: float, name: str
    ) -> BroadcastGroup:
        """Collective over the members. key: the same for all of them, and for no other group. seconds: the longest
        wait, for members who have not come and in every broadcast. Raises PeerLost."""
        timeout = timedelta(seconds=seconds)
        host, _, port = meeting.rpartition(":")
        with naming(name):
            store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)
            group = GROUPS[backend](dist.PrefixStore(key, store), member, size, timeout)
        return BroadcastGroup(group, name)

    def broadcast(self, tensor: torch.Tensor) -> Any:
        """From the source to all; the tensor must not be touched until `wait` on what this returns."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = SOURCE, 0
        with naming(self.name):
            return self._group.broadcast([tensor], options)

    def wait(self, work: Any) -> None:
        """Raises PeerLost when a member is gone, or is not heard of for so long."""
        with naming(self.name):
            work.wait()

    def leave(self) -> None:
        """The others hear of it at once where nothing is on its way. gloo closes connections when the last one lets go
        of a group, and neither `abort` nor `shutdown` does: so nobody has it but this class, which errors and their
        frames may keep for long."""
        self._group = None


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Failures by the end of another process are reported with the group's name."""
    try:
        yield
    except RuntimeError as error:
        if not tells_of_lost_peer(error):
            raise
        said = str(error).partition("\n")[0]
        raise PeerLost(f"{name} or one that receives from it is gone, or was not heard of in time: {said}") from error


def _gloo(store: dist.Store, member: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, member, size, timeout)


def _nccl(store: dist.Store, member: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, member, size, options)


GROUPS: dict[str, Callable[[dist.Store, int, int, timedelta], Any]] = {"gloo": _gloo, "nccl": _nccl}
"""By backend of the worker groups. Such groups are not part of a torch.distributed world, which cannot make them."""
