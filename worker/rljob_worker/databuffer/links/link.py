"""One link to a peer as decisions only: heartbeats (pings), retries with backoff, the loss of the peer. Informed of
what happened, it says what to do. And the receiver, which takes what peers send exactly once and in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from rljob_worker.databuffer.protocol.errors import Bug, Malformed, Refused
from rljob_worker.databuffer.protocol.peer_side import Envelope, PeerMessage
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import RLJobError

MAX_MESSAGES = 512
MAX_BYTES = 1 << 20
"""What an envelope holds, unless a single message is bigger."""
MESSAGE_BYTES = 64
"""What a message takes besides its texts and bytes, about."""
PING_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 0.5

Hears = Callable[[Host, PeerMessage], None]
FailsOf = Callable[[Host, RLJobError], None]
"""What handling a message of a peer raised; may raise it to the peer."""


@dataclass(frozen=True, slots=True)
class StartCall:
    """Call the peer with `envelope`, then call `carried` or `failed`."""

    suspect: bool
    """The call before ran out of time: this one may, too."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `due` after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The peer has been away for too long; the link is over."""

    since: float


Effect = StartCall | Wait | LinkLost | None


class _State(Enum):
    IDLE = auto()
    SENDING = auto()
    """A call is under way."""
    AWAY = auto()
    """Waits before the next try."""
    OVER = auto()
    """Lost, or left: what is sent is dropped."""


class Link:
    """Messages to one peer, numbered from 0: each stays until a call that held it was answered.

    At most one call is under way. A call may have been carried out although it failed: the peer's
    `MessageReceiver` knows by the numbers what it has had.
    """

    def __init__(self) -> None:
        self._outbox: deque[tuple[PeerMessage, int]] = deque()
        self._first = 0
        self._state = _State.IDLE
        self._num_called: int
        self._called_at = float("-inf")
        self._spared = False
        self._heard: float | None = None
        self._away_since: float | None = None
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._suspect = False
        self._left = False

    @property
    def is_drained(self) -> bool:
        return not self._outbox

    @property
    def is_over(self) -> bool:
        return self._state is _State.OVER

    @property
    def has_left(self) -> bool:
        return self._left

    @property
    def heard(self) -> float | None:
        """When the peer last gave a sign of life."""
        return self._heard

    def hear(self, now: float) -> None:
        """The peer called."""
        self._heard = now

    def send(self, message: PeerMessage) -> Effect:
        if self.is_over:
            return None
        self._outbox.append((message, size_of(message)))
        return self._start() if self._state is _State.IDLE else None

    def look_after(self, now: float, ping_seconds: float = PING_SECONDS) -> Effect:
        """Call a peer that has been silent for as long."""
        silent_since = float("-inf") if self._heard is None else self._heard
        if self._state is not _State.IDLE or self._left or now - silent_since < ping_seconds:
            return None
        return self._start()

    def envelope(self, now: float) -> tuple[Envelope, int]:
        """What the call that starts now carries, and about how many bytes."""
        self._called_at = now
        messages: list[PeerMessage] = []
        num_bytes = 0
        for message, size in self._outbox:
            if messages and (len(messages) == MAX_MESSAGES or num_bytes + size > MAX_BYTES):
                break
            messages.append(message)
            num_bytes += size
        self._num_called = len(messages)
        return Envelope(self._first, tuple(messages)), num_bytes

    def carried(self, now: float) -> Effect:
        """The call was answered."""
        self._heard = now
        self._away_since = None
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._suspect = self._spared = False
        if self.is_over:
            return None
        for _ in range(self._num_called):
            self._outbox.popleft()
        self._first += self._num_called
        if self._outbox:
            return self._start()
        self._state = _State.IDLE
        return None

    def failed(self, now: float, window_seconds: float, *, timed_out: bool) -> Effect:
        """The call was not answered. Lost once that has lasted for `window_seconds`.

        A peer that was heard during the call may have come back after it began: it gets one more call, and only one,
        because a peer that speaks and does not hear is lost as well.
        """
        if self._left:
            self.end()
        if self.is_over:
            return None
        self._away_since = now if self._away_since is None else self._away_since
        self._suspect = timed_out
        if now - self._away_since >= window_seconds:
            if self._spared or self._heard is None or self._heard <= self._called_at:
                self.end()
                return LinkLost(self._away_since)
            self._spared = True
        self._state = _State.AWAY
        seconds, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, LAST_RETRY_SECONDS)
        return Wait(seconds)

    def due(self) -> Effect:
        """The wait is over."""
        return self._start() if self._state is _State.AWAY else None

    def leave(self) -> None:
        """The peer is about to end: it gets what it still takes."""
        self._left = True

    def end(self) -> None:
        """Nothing is sent any more."""
        self._state = _State.OVER
        self._outbox.clear()

    def _start(self) -> StartCall:
        self._state = _State.SENDING
        return StartCall(self._suspect)


def size_of(message: PeerMessage) -> int:
    """Bytes of a message on the wire, about."""
    values = (getattr(message, name) for name in message.__struct_fields__)
    return MESSAGE_BYTES + sum(_size(value) for value in values)


def _size(value: object) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    return 9 * len(value) if isinstance(value, tuple) else 0


class _Line:
    """What one process of one sender has said."""

    def __init__(self, life: str) -> None:
        self.life = life
        self.lock = threading.Lock()
        self.next = 0


class MessageReceiver:
    """Hands messages to `hears`, those of one sender one after the other; what that raises goes to `fails`."""

    def __init__(self, hears: Hears, fails: FailsOf) -> None:
        self._hears = hears
        self._fails = fails
        self._lock = threading.Lock()
        self._lines: dict[Host, _Line] = {}
        self._ended: set[str] = set()
        """Processes that were given up: what they still say is about what is no more."""

    def end(self, sender: Host) -> None:
        """The process of this name is heard no more, and neither is another one, until `forget`."""
        with self._lock:
            if sender in self._lines:
                self._ended.add(self._lines[sender].life)

    def forget(self, sender: Host) -> None:
        """The process of this name is heard no more; another one may take its name."""
        with self._lock:
            line = self._lines.pop(sender, None)
            if line is not None:
                self._ended.add(line.life)

    def refuse_ended(self, sender: Host, life: str) -> None:
        """Raises Refused for a process that was forgotten."""
        with self._lock:
            if life in self._ended:
                raise Refused(f"host {sender} was given up, and what it had is given to others: it has to begin again")

    def is_of_another(self, sender: Host, life: str) -> bool:
        """Whether the process that is heard under this name is not the one that calls."""
        with self._lock:
            line = self._lines.get(sender)
            return line is not None and line.life != life

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
            self._fails(sender, type(error)(f"{_named(sender, message)}: {error}"))
        except Exception as error:  # the sender did nothing wrong: those that wait for its message get the error
            self._fails(sender, Bug(f"{_named(sender, message)}: {error!r}"))


def _named(sender: Host, message: PeerMessage) -> str:
    about = [
        f"{name} {getattr(message, name)}" for name in ("edge", "topic", "step", "version") if hasattr(message, name)
    ]
    return ", ".join([f"{type(message).__name__} from host {sender}", *about])
