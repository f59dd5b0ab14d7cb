"""One data buffer as a process: environment in, servers up, ready line out, clean end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.links.links import LinkSettings
from rljob_worker.databuffer.links.token import read_token
from rljob_worker.databuffer.protocol.worker_answers import WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import WorkerRequest
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import FAN_OUT
from rljob_worker.databuffer.server.buffer import DataBuffer
from rljob_worker.databuffer.server.code_digest import code_digest
from rljob_worker.databuffer.server.flight import PeerHandler, PeerServer
from rljob_worker.databuffer.server.guest import GuestBuffer, GuestSide
from rljob_worker.databuffer.server.local import serve_workers
from rljob_worker.databuffer.server.metrics import BufferMetrics, MetricsServer
from rljob_worker.databuffer.server.worker_side import WorkerSide
from rljob_worker.databuffer.store.segment_files import ARENA, SPILL, SegmentFile, created, mapped
from rljob_worker.errors import InvalidJob, RLJobError
from rljob_worker.process.lifeline import die_with, ignore_what_means_workers, lifeline_fd
from rljob_worker.process.open_files import allow_files
from rljob_worker.process.ports import check_free
from rljob_worker.process.signal_pipe import SignalPipe

if TYPE_CHECKING:
    from rljob_worker.databuffer.links.credentials import TlsCredentials

MAX_SOCKET_PATH = 107
ENDS: tuple[signal.Signals, ...] = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
FILES, FILES_OF_A_HOST = 512, 20
"""A host calls us and is called, a connection each, and as many as `STREAM_CONNECTIONS` bring bytes either way."""
SWITCH_SECONDS = 0.0005
"""Many threads wait for sockets here and few compute: an answer must not wait 5 ms for another thread's turn."""


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """The environment of a data buffer, parsed once.

    Besides what every process of a pod gets: RLJOB_TLS_DIR (where the job has dataBuffer.tls), RLJOB_BUFFER_PORT (0:
    the system chooses, and only this machine connects), RLJOB_METRICS_PORT, RLJOB_LISTEN, RLJOB_ARENA_DIR (/dev/shm),
    RLJOB_SPILL_DIR (where the job spills and names no directory), RLJOB_BUFFER_RETRY_SECONDS (5),
    RLJOB_BUFFER_START_SECONDS (300), RLJOB_BUFFER_FAN_OUT (32).
    """

    plan: Plan
    identity: Identity
    peers: AddressBook
    credentials: TlsCredentials | None
    """None: the job has no dataBuffer.tls."""
    socket: Path
    arena_directory: Path
    listen: str
    port: int
    metrics_port: int
    memory_bytes: int
    spill: tuple[Path, int] | None
    """Directory and bytes."""
    retry_seconds: float
    start_seconds: float
    fan_out: int


def settings_from(environment: Mapping[str, str]) -> BufferSettings:
    """Raises InvalidJob naming the variable that is missing or means nothing."""

    def required(name: str) -> str:
        if not environment.get(name):
            raise InvalidJob(f"{name} is not set; the supervisor or the operator sets it")
        return environment[name]

    plan = Plan.model_validate_json(Path(required(keys.ENV_PLAN)).read_bytes())
    identity = Identity(
        token=read_token(environment),
        attempt=int(required(keys.ENV_ATTEMPT)),
        plan_hash=plan.hash(),
        group=required(keys.ENV_GROUP),
        host=int(required(keys.ENV_HOST_INDEX)),
        code=code_digest() if plan.elastic_group is not None else "",
    )
    peers = AddressBook(required(keys.ENV_PEERS), plan.job)
    tls_directory = Path(required(keys.ENV_TLS_DIR)) if plan.spec.data_buffer.tls else None
    port = int(environment.get(keys.ENV_BUFFER_PORT, "0"))
    spill = plan.spec.data_buffer.spill
    return BufferSettings(
        plan=plan,
        identity=identity,
        peers=peers,
        credentials=_credentials(tls_directory, peers, identity.pod) if tls_directory else None,
        socket=_socket(required(keys.ENV_BUFFER)),
        arena_directory=Path(environment.get(keys.ENV_ARENA_DIR, keys.SHARED_MEMORY)),
        listen=environment.get(keys.ENV_LISTEN, "0.0.0.0" if port else "127.0.0.1"),
        port=port,
        metrics_port=int(environment.get(keys.ENV_METRICS_PORT, "0")),
        memory_bytes=parse_quantity(plan.spec.data_buffer.memory),
        spill=None
        if spill is None
        else (Path(spill.directory or required(keys.ENV_SPILL_DIR)), parse_quantity(spill.limit)),
        retry_seconds=_number(environment, keys.BUFFER_RETRY_SECONDS, 5, least=0),
        start_seconds=_number(environment, keys.BUFFER_START_SECONDS, 300, least=0),
        fan_out=int(_number(environment, keys.BUFFER_FAN_OUT, FAN_OUT, least=1)),
    )


def _number(environment: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    """What a job's `env` may set."""
    text = environment.get(name) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise InvalidJob(f"{name} is {text!r}, and has to be a number of at least {least:g}; unset, it is {default:g}")
    return number


def _credentials(directory: Path, peers: AddressBook, here: Host) -> TlsCredentials:
    """Checked against the name by which the others call this host, where that is known before they do."""
    from rljob_worker.databuffer.links.credentials import read_credentials  # most jobs have no use for its 50 ms

    address = peers.find(here)
    called = () if address is None else (address.rpartition(":")[0],)
    return read_credentials(directory, (str(here), *called))


def _socket(path: str) -> Path:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise InvalidJob(f"RLJOB_BUFFER {path} has more than the {MAX_SOCKET_PATH} bytes of a UNIX socket's path")
    return Path(path)


@contextlib.contextmanager
def serve_buffer(settings: BufferSettings) -> Iterator[dict[str, int]]:
    """A data buffer with its servers up; yields the ports. Its files and its socket are gone at the end."""
    plan, identity = settings.plan, settings.identity
    metrics = BufferMetrics()
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(created(ARENA, settings.arena_directory, settings.memory_bytes))]
        if settings.spill is not None:
            places.append(stack.enter_context(created(SPILL, *settings.spill)))
        buffer, worker_side, peer_side = _built(settings, places, metrics)
        settings.socket.unlink(missing_ok=True)
        stack.callback(settings.socket.unlink, missing_ok=True)
        local = serve_workers(settings.socket, identity, buffer.life, plan.groups, worker_side)
        stack.callback(local.shutdown)
        check_free("the data buffer", settings.listen, settings.port, keys.ENV_BUFFER_PORT)
        address = f"{settings.listen}:{settings.port}"
        remote = PeerServer(
            address,
            identity,
            buffer.life,
            plan.groups,
            peer_side,
            settings.credentials,
            refused=metrics.refused,
        )
        stack.callback(remote.shutdown)
        check_free("the data buffer's metrics", settings.listen, settings.metrics_port, keys.ENV_METRICS_PORT)
        scraped = MetricsServer(metrics, settings.listen, settings.metrics_port)
        scraped.start()
        stack.callback(scraped.stop)
        stack.callback(buffer.close)
        buffer.start()
        yield {"port": remote.port, "metrics_port": scraped.port}


def _built(
    settings: BufferSettings, places: Sequence[SegmentFile], metrics: BufferMetrics
) -> tuple[DataBuffer | GuestBuffer, Callable[[Identity, WorkerRequest], WorkerAnswer], PeerHandler]:
    """The data buffer of this host, and what answers its workers and its peers."""
    plan, memory = settings.plan, mapped(places, writable=True)
    links = LinkSettings(
        address_book=settings.peers,
        identity=settings.identity,
        retry_seconds=settings.retry_seconds,
        start_seconds=settings.start_seconds,
        credentials=settings.credentials,
    )
    if plan.group(settings.identity.group).elastic is not None:
        guest = GuestBuffer(plan, places, memory, metrics, links)
        return guest, GuestSide(guest), guest
    buffer = DataBuffer(plan, places, memory, metrics, links, fan_out=settings.fan_out)
    return buffer, WorkerSide(buffer), buffer.peer_side


def main() -> int:
    """Runs until the end of its supervisor or that one's word, SIGHUP; without one, until any signal that asks for the
    end. Returns the exit code."""
    ends, lifeline = ENDS, lifeline_fd()
    if lifeline is not None:
        ignore_what_means_workers()
        die_with(os.getppid(), signal.SIGHUP)
        ends = (signal.SIGHUP,)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with SignalPipe(ends) as signals:
            settings = settings_from(os.environ)
            allow_files(FILES + FILES_OF_A_HOST * sum(group.replicas for group in settings.plan.groups))
            with serve_buffer(settings) as ports:
                line = {"ready": "databuffer", "address": f"127.0.0.1:{ports['port']}", **ports}
                print(json.dumps(line), flush=True)
                _until_stopped(signals, lifeline)
    except RLJobError as error:
        print(f"data buffer: {error}", file=sys.stderr, flush=True)
        return int(error.exit_code)
    return int(ExitCode.DONE)


def _until_stopped(signals: SignalPipe, lifeline: int | None) -> None:
    """Until a signal, or the end of file of the pipe that the supervisor holds."""
    watched = [signals.fd] if lifeline is None else [signals.fd, lifeline]
    while True:
        readable, _, _ = select.select(watched, [], [])
        if signals.fd in readable or not os.read(readable[0], 1):
            return
