"""Whether a collective failed because another process is gone (75, the gang restarts), or by our own mistake (70).

All a failed collective leaves is a RuntimeError and its words. gloo raises plain ones that name its source file:

    [.../gloo/transport/tcp/pair.cc:552] Connection closed by peer [10.0.0.2]:5. This is typically caused by ...
    Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: No route ...

NCCL's are DistBackendErrors, for bad arguments too. They name the kind of error, then the last one of the library:

    NCCL error in: .../NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version ...
    ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
    Last error:
    socketStartConnect: Connect to 10.0.0.2<52822> failed : No route to host
"""

from __future__ import annotations

import re

import torch.distributed as dist

_GLOO = re.compile(r"gloo/transport/|^Application timeout caused pair closure")

_NETWORK = re.compile(
    r"(closed|reset) by (remote )?peer|connection (closed|refused|aborted)|software caused connection abort"
    r"|socket (unexpectedly )?closed|broken pipe|not connected|short (read|write)|time(d )?out|connectFullMesh failed"
    r"|no route to host|(network|host) is (unreachable|down)",
    re.IGNORECASE,
)
"""How the other end of a connection is gone, or no longer to be reached."""

_NCCL = re.compile(
    r"ncclRemoteError|remote process exited|ncclSystemError|unhandled system error|communicator was aborted"
)
"""NCCL's own words for it. A system error of NCCL's is nearly always a socket's."""

_OWN_HOST = re.compile(r"shared memory", re.IGNORECASE)
"""A system error that another start meets again: a /dev/shm that is too small."""


def tells_of_lost_peer(error: RuntimeError) -> bool:
    """Whether a collective failed by the end of another process, not by what it was asked to do."""
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    said = str(error)
    if isinstance(error, dist.DistBackendError):
        lost = _NCCL.search(said) or _NETWORK.search(said)
        return lost is not None and _OWN_HOST.search(said) is None
    return _GLOO.search(said) is not None and _NETWORK.search(said) is not None
