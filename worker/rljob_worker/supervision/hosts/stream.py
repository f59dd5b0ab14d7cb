"""One connection between launchers, which never waits: what is there is read, what fits is written."""

from __future__ import annotations

import contextlib
import socket

from rljob_worker.process.frames import LENGTH_BYTES, length_of

IDLE_SECONDS, PROBE_SECONDS, NUM_PROBES = 10, 5, 3
"""The kernel asks a silent machine whether it is there, and gives it up after 25 s."""

_READ_BYTES = 1 << 18


class FrameStream:
    """Frames over TCP. `ended` says why there will be no more, once that is so."""

    def __init__(self, channel: socket.socket, most: int) -> None:
        """most: bytes of the largest frame that is read. Raises OSError when the other side is gone already."""
        self._channel = channel
        self._most = most
        self._read = bytearray()
        self._to_write = bytearray()
        self.ended: str | None = None
        self.local_address: str = channel.getsockname()[0]
        """By which the other side has reached this one, or the other way round."""
        self.peer_address: str = channel.getpeername()[0]
        channel.setblocking(False)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(channel)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def has_to_write(self) -> bool:
        return bool(self._to_write)

    def frames(self) -> list[bytes]:
        """What has come whole."""
        try:
            while len(self._read) < LENGTH_BYTES + self._most:
                data = self._channel.recv(_READ_BYTES)
                if not data:
                    self.ended = self.ended or "it hung up"
                    break
                self._read += data
        except BlockingIOError:
            pass
        except OSError as error:
            self.ended = self.ended or error.strerror or str(error)
        return self._whole()

    def send(self, body: bytes) -> None:
        """Written as soon as it fits; `flush` goes on with it."""
        self._to_write += length_of(body) + body
        self.flush()

    def flush(self) -> None:
        try:
            while self._to_write:
                del self._to_write[: self._channel.send(self._to_write)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.ended = self.ended or error.strerror or str(error)
            self._to_write.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        self._channel.close()

    def _whole(self) -> list[bytes]:
        result = []
        while len(self._read) >= LENGTH_BYTES:
            length = int.from_bytes(self._read[:LENGTH_BYTES], "big")
            if length > self._most:
                self.ended = f"it sent a frame of {length:,} bytes, at most {self._most:,} are read"
                self._read.clear()
                break
            if len(self._read) < LENGTH_BYTES + length:
                break
            result.append(bytes(self._read[LENGTH_BYTES : LENGTH_BYTES + length]))
            del self._read[: LENGTH_BYTES + length]
        return result


def _keep_alive(channel: socket.socket) -> None:
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_PROBES)
    # what was sent and never acknowledged, which the probes do not ask about
    give_up_seconds = IDLE_SECONDS + PROBE_SECONDS * NUM_PROBES
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_seconds * 1000)
