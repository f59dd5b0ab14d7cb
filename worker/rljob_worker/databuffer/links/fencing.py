"""Who may talk to a data buffer: token, attempt and plan, shown in every call and checked before any handler runs."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary.keys import ENV_TOKEN_FILE
from rljob_worker.databuffer.links.token import MAX_CHARACTERS, check_token, is_visible
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Elsewhere, Refused
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.errors import PeerLost

DATA_BUFFER = -1
"""The rank of a caller that is not a worker."""

Headers = list[tuple[bytes, bytes]]

_PREFIX = "x-rljob-"
_TEXTS = ("token", "plan", "group")
_NUMBERS = ("attempt", "host", "rank")
_NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls. `rank` is the rank in the group; DATA_BUFFER for a data buffer."""

    token: str
    attempt: int
    plan_hash: str
    group: str
    host: int
    rank: int = DATA_BUFFER
    code: str = ""
    """What a data buffer runs (`server.code_digest`), in a job with guests."""

    @property
    def worker(self) -> WorkerId:
        return WorkerId(self.group, self.rank)

    @property
    def pod(self) -> Host:
        return Host(self.group, self.host)


class BufferService(Enum):
    """The two services of a data buffer."""

    PEERS = "other data buffers"
    WORKERS = "the workers of its host"


PEERS = BufferService.PEERS


class InvalidCaller(Exception):
    """Headers of a caller who is not let in, in words."""

    def __init__(self, words: str, kind: type[PeerLost] = Refused) -> None:
        """kind: Elsewhere if the caller may have meant another data buffer, which had this address before."""
        super().__init__(words)
        self.kind = kind


def headers_of(identity: Identity, to: Host, own_life: str, expected_life: str | None) -> Headers:
    """What a caller shows to the data buffer of host `to`. `own_life` identifies the caller's process, `expected_life`
    the one that is called. Raises InvalidJob for an empty token."""
    check_token(identity.token)
    shown = {
        "token": identity.token,
        "attempt": str(identity.attempt),
        "plan": identity.plan_hash,
        "group": identity.group,
        "host": str(identity.host),
        "rank": str(identity.rank),
        "to": str(to),
        "life": own_life,
    }
    if identity.code:
        shown["code"] = identity.code
    if expected_life is not None:
        shown["expects"] = expected_life
    return [((_PREFIX + name).encode(), value.encode()) for name, value in shown.items()]


def introduction_of(headers: Headers) -> bytes:
    """The first frame of a connection that carries no headers."""
    return encode({name.decode(): [value.decode()] for name, value in headers})


def read_headers(headers: Mapping[str, Sequence[Any]]) -> Identity:
    """Who shows these. Raises InvalidCaller naming the header that is missing, repeated, too long or no number."""
    texts = {name: _text(headers, name) for name in _TEXTS}
    numbers = {name: _number(headers, name) for name in _NUMBERS}
    code = _text(headers, "code") if _PREFIX + "code" in headers else ""
    where = (texts["group"], numbers["host"], numbers["rank"])
    return Identity(texts["token"], numbers["attempt"], texts["plan"], *where, code=code)


def check_caller(
    caller: Identity, to: str, ours: Identity, side: BufferService, groups: Mapping[str, GroupPlan]
) -> None:
    """Raises InvalidCaller if `caller` may not talk to us. The token is compared in constant time and never shown.

    A name may lead to a data buffer of another job, of the attempt before or of another host for as long as addresses
    are cached: a caller that may have been led to us so tries again.
    """
    who = f"{caller.group or 'a stranger'}-{caller.host}"
    if not ours.token:
        raise InvalidCaller(f"this data buffer has no token: {ENV_TOKEN_FILE} is empty")
    if not hmac.compare_digest(caller.token.encode(), ours.token.encode()):
        raise InvalidCaller(f"{who} does not have the token of this job", Elsewhere)
    if caller.attempt != ours.attempt:
        kind = Elsewhere if caller.attempt > ours.attempt else Refused
        raise InvalidCaller(
            f"{who} is of attempt {caller.attempt}, this data buffer serves attempt {ours.attempt}", kind
        )
    if caller.plan_hash != ours.plan_hash:
        raise InvalidCaller(
            f"{who} runs plan {caller.plan_hash[:12]}, this data buffer serves plan {ours.plan_hash[:12]}"
        )
    if to != str(ours.pod):
        raise InvalidCaller(f"this is the data buffer of host {ours.pod}", Elsewhere)
    reason = _misplaced(caller, ours, side, groups) or (_of_other_code(caller, ours, groups) if side is PEERS else None)
    if reason:
        raise InvalidCaller(reason)


def _misplaced(caller: Identity, ours: Identity, side: BufferService, groups: Mapping[str, GroupPlan]) -> str | None:
    group = groups.get(caller.group)
    if group is None or not 0 <= caller.host < group.replicas:
        return f"the plan has no host {caller.group}-{caller.host}"
    who = f"the data buffer of host {caller.pod}" if caller.rank == DATA_BUFFER else str(caller.worker)
    if (caller.rank == DATA_BUFFER) != (side is BufferService.PEERS):
        return f"{who} speaks to the side for {side.value}"
    if side is BufferService.PEERS:
        return f"a second data buffer of host {caller.pod}" if caller.pod == ours.pod else None
    if not 0 <= caller.rank < group.num_workers or caller.rank // group.workers_per_host != caller.host:
        return f"the plan has no {caller.worker} on host {caller.pod}"
    return None if caller.pod == ours.pod else f"{who} is of host {caller.pod}, this is host {ours.pod}"


def _of_other_code(caller: Identity, ours: Identity, groups: Mapping[str, GroupPlan]) -> str | None:
    """Guests come at any time, with what their image has then; pods of the gang begin together."""
    is_of_guest = any(groups[one.group].elastic is not None for one in (caller, ours))
    if not is_of_guest or caller.code == ours.code:
        return None
    return (
        f"host {caller.pod} runs other code ({caller.code or 'unknown'}) than this data buffer of host {ours.pod} "
        f"({ours.code}): their images differ; suspend the job and let it go on, and all its pods have one image"
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and which process of that name."""

    identity: Identity
    life: str


class Fence:
    """Lets callers in, before any handler runs.

    `life` tells one process from the next at the same address: a data buffer that was restarted has lost its rows, and
    a client that knew the one before must hear of it instead of waiting for them.
    """

    def __init__(self, ours: Identity, life: str, side: BufferService, groups: Sequence[GroupPlan]) -> None:
        check_token(ours.token)
        self._ours = ours
        self._life = life
        self._side = side
        self._groups = {group.name: group for group in groups}

    def admit(self, headers: Mapping[str, Sequence[str]]) -> Caller:
        """Who shows these. Raises InvalidCaller saying why he may not call."""
        identity, to, life = read_headers(headers), _text(headers, "to"), _text(headers, "life")
        expected = _text(headers, "expects") if _PREFIX + "expects" in headers else self._life
        check_caller(identity, to, self._ours, self._side, self._groups)
        if expected != self._life:
            raise InvalidCaller("it has restarted, and the rows it held are lost")
        return Caller(identity, life)

    def admit_reader(self, headers: Mapping[str, Sequence[str]]) -> None:
        """Admit a client that is not a host of the job and only reads: it shows token, attempt and perhaps the plan.
        Raises InvalidCaller saying why it may not."""
        if not hmac.compare_digest(_text(headers, "token").encode(), self._ours.token.encode()):
            raise InvalidCaller("a reader does not have the token of this job")
        attempt = _number(headers, "attempt")
        if attempt != self._ours.attempt:
            raise InvalidCaller(
                f"a reader is of attempt {attempt}, this data buffer serves attempt {self._ours.attempt}"
            )
        if _PREFIX + "plan" in headers and (plan := _text(headers, "plan")) != self._ours.plan_hash:
            raise InvalidCaller(
                f"a reader means plan {plan[:12]}, this data buffer serves plan {self._ours.plan_hash[:12]}"
            )


def is_reader(headers: Mapping[str, Sequence[str]]) -> bool:
    """Whether a caller does not say that it is a host of the job."""
    return _PREFIX + "group" not in headers


def check_certificate(caller: Identity, shown: str) -> None:
    """Raises InvalidCaller if the first name in the caller's certificate is not the host that it says it is."""
    if shown != str(caller.pod):
        raise InvalidCaller(f"host {caller.pod} shows the certificate of {shown}")


def _text(headers: Mapping[str, Sequence[Any]], name: str) -> str:
    values = headers.get(_PREFIX + name, ())
    if len(values) != 1:
        raise InvalidCaller(f"a call shows {len(values)} values of {_PREFIX}{name}, not one")
    (value,) = values
    if not isinstance(value, str) or not is_visible(value):
        raise InvalidCaller(f"a call's {_PREFIX}{name} is not 1 to {MAX_CHARACTERS} visible ASCII characters")
    return value


def _number(headers: Mapping[str, Sequence[Any]], name: str) -> int:
    text = _text(headers, name)
    if not _NUMBER.fullmatch(text):
        raise InvalidCaller(f"a call's {_PREFIX}{name} is {text[:20]}, no number of up to 9 digits")
    return int(text)
