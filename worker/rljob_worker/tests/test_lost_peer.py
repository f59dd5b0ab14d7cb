"""What gloo and NCCL say when a peer is gone, and what they say when it is not that."""

import pytest
import torch.distributed as dist

from rljob_worker.lost_peer import tells_of_lost_peer

PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:{}] {}"
SYSTEM = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.29.3\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\n{}"
)
INTERNAL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, internal error - please report "
    "this issue to the NCCL developers, NCCL version 2.29.3\nncclInternalError: Internal check failed.\nLast error:\n{}"
)
REMOTE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a "
    "network error, NCCL version 2.29.3\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely.\nLast error:\n{}"
)

GLOO_SAYS = [
    PAIR.format(552, "Connection closed by peer [10.0.0.2]:5. This is typically caused by a remote worker crashing."),
    PAIR.format(537, "Read error [10.0.0.2]:5: Connection reset by peer. This is typically caused by a remote worker"),
    PAIR.format(537, "Read error [10.0.0.2]:5: No route to host. This is typically caused by a remote worker hanging"),
    PAIR.format(537, "Read error [10.0.0.2]:5: Network is unreachable. This is typically caused by a remote worker"),
    PAIR.format(537, "Read error [10.0.0.2]:5: Network is down. This is typically caused by a remote worker"),
    PAIR.format(537, "Read error [10.0.0.2]:5: Host is down. This is typically caused by a remote worker"),
    PAIR.format(537, "Read error [10.0.0.2]:5: Software caused connection abort. This is typically caused by"),
    PAIR.format(537, "Read error [10.0.0.2]:5: Transport endpoint is not connected. This is typically caused by"),
    PAIR.format(339, "writev [10.0.0.2]:5: Broken pipe"),
    PAIR.format(314, "Write timeout [10.0.0.2]:5"),
    PAIR.format(812, "Socket closed [10.0.0.2]:5"),
    PAIR.format(201, "Socket unexpectedly closed [10.0.0.2]:5"),
    PAIR.format(152, "short read: got 0 bytes while expecting to read 8 bytes, remote=[10.0.0.2]:5"),
    PAIR.format(152, "short write: wrote 0 bytes while expecting to write 8 bytes, remote=[10.0.0.2]:5"),
    "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete",
    "Application timeout caused pair closure",
    "Gloo connectFullMesh failed with " + PAIR.format(144, "no error"),
    "Gloo connectFullMesh failed with "
    + PAIR.format(152, "timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.2]:5"),
    PAIR.format(152, "SO_ERROR: Connection refused, remote=[10.0.0.2]:5"),
]
NCCL_SAYS = [
    SYSTEM.format("socketStartConnect: Connect to 10.0.0.2<52822> failed : No route to host"),
    SYSTEM.format("socketPollConnect: connect to 10.0.0.2<52822> failed : Network is unreachable"),
    SYSTEM.format(""),
    "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.3",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    REMOTE.format("socketProgress: Connection closed by remote peer host-2<41938>"),
    "ncclRemoteError: A call failed possibly due to a network error",
    "NCCL error: remote process exited or there was a network error, NCCL version 2.29.3",
    INTERNAL.format("socketProgress: Connection closed by remote peer host-2<41938>"),
    INTERNAL.format("ncclOsSocketProgressOpt: Call to recv from 10.0.0.2<1> failed : Connection reset by peer"),
    INTERNAL.format("[Service thread] Connection closed by localRank 1"),
    INTERNAL.format("connect to 10.0.0.2<1> returned Connection refused, exceeded error retry count"),
    INTERNAL.format("connect to 10.0.0.2<1> returned Connection aborted, exceeded error retry count"),
    "NCCL timeout in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:120",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600029 ms",
    "NCCL communicator was aborted on rank 3.",
]
NOT_A_PEER = [
    RuntimeError("[enforce fail at /x/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 16 vs 8"),
    RuntimeError("the user's own: connection closed by peer"),
    RuntimeError("the user's own: ncclSystemError, unhandled system error"),
    RuntimeError("the user said: Application timeout caused pair closure"),
    dist.DistBackendError("ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    dist.DistBackendError("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2"),
    dist.DistBackendError(INTERNAL.format("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000")),
    dist.DistBackendError(
        SYSTEM.format(
            "Error while creating shared memory segment /dev/shm/nccl-9TQJ5b (size 9637888), error: No space left on "
            "device (28)"
        )
    ),
]


@pytest.mark.parametrize("said", GLOO_SAYS)
def test_gloo_tells_of_a_lost_peer(said: str) -> None:
    assert tells_of_lost_peer(RuntimeError(said))


@pytest.mark.parametrize("said", NCCL_SAYS)
def test_nccl_tells_of_a_lost_peer(said: str) -> None:
    assert tells_of_lost_peer(dist.DistBackendError(said))


@pytest.mark.parametrize(
    "error", [dist.DistNetworkError("failed to recv, got 0 bytes"), dist.DistStoreError("wait timeout after 60000ms")]
)
def test_a_rendezvous_that_fails_is_a_lost_peer(error: RuntimeError) -> None:
    assert tells_of_lost_peer(error)


@pytest.mark.parametrize("error", NOT_A_PEER)
def test_what_is_no_peers_end_stays_a_mistake_of_ours(error: RuntimeError) -> None:
    assert not tells_of_lost_peer(error)
