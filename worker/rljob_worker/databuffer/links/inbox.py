"""What peers say, heard exactly once and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rljob_worker.databuffer.protocol.errors import Bug, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import Envelope, PeerMessage
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.work import Fails
from rljob_worker.errors import RLJobError

Hears = Callable[[Host, PeerMessage], None]


class _Line:
    """What one process of one sender has said."""

    def __init__(self, life: str) -> None:
        self.life = life
        self.lock = threading.Lock()
        self.next = 0


class Inbox:
    """Hands messages to `hears`, those of one sender one after the other; what that raises goes to `fails`."""

    def __init__(self, hears: Hears, fails: Fails) -> None:
        self._hears = hears
        self._fails = fails
        self._lock = threading.Lock()
        self._lines: dict[Host, _Line] = {}

    def take(self, sender: Host, life: str, envelope: Envelope) -> None:
        """Hear what is new in `envelope`.

        Raises Refused when the sender has restarted, Malformed when messages are missing before these.
        """
        line = self._line(sender, life)
        with line.lock:
            if not 0 <= envelope.first <= line.next:
                raise Malformed(
                    f"an envelope of host {sender} begins with message {envelope.first}, expected is {line.next}"
                )
            for message in envelope.messages[line.next - envelope.first :]:
                line.next += 1
                self._hear(sender, message)

    def _line(self, sender: Host, life: str) -> _Line:
        with self._lock:
            line = self._lines.setdefault(sender, _Line(life))
        if line.life != life:
            raise Refused(f"the data buffer of host {sender} has restarted, and the rows it held are lost")
        return line

    def _hear(self, sender: Host, message: PeerMessage) -> None:
        try:
            self._hears(sender, message)
        except RLJobError as error:
            self._fails(type(error)(f"{_named(sender, message)}: {error}"))
        except Exception as error:  # the sender did nothing wrong: whoever waits for what it said hears of it
            self._fails(Bug(f"{_named(sender, message)}: {error!r}"))


def _named(sender: Host, message: PeerMessage) -> str:
    about = [
        f"{name} {getattr(message, name)}" for name in ("edge", "topic", "step", "version") if hasattr(message, name)
    ]
    return ", ".join([f"{type(message).__name__} from host {sender}", *about])
