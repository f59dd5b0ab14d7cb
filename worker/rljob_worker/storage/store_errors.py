"""What an error of an object store means for the job, and the OSError it becomes: pure, by its type and its words.

The library says in the text of an error what the server answered: `... status code: 503 Service Unavailable: <Error>
<Code>SlowDown</Code>...`. All else it says is for its own developers and left out.
"""

from __future__ import annotations

import errno
import re
from enum import Enum

from rljob_worker.errors import RLJobError
from rljob_worker.storage.address import Address
from rljob_worker.storage.connection import needed

_STATUS = re.compile(r"status code: (\d{3}[^:<\n]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S*")
_CREDENTIAL_SERVERS = ("169.254.169.254", "metadata.google.internal")
"""Asked for credentials on machines of a cloud when the environment has none."""

_WILL_BE_RENEWED = ("ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException")
"""Credentials that were right and have expired: their issuer gives new ones."""

_BUSY = ("RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded", "IDPCommunicationError")
"""Codes of a 400 that asks to come back, of S3 or of who hands out credentials: a thousand ranks ask that one at once.
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html"""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""Codes of a 404 that is not about an object."""


class StoreErrorKind(Enum):
    """What to do about an error."""

    PASSING = "ask again"
    DENIED = "the credentials are absent, wrong, or not enough"
    NO_BUCKET = "there is no such bucket"
    ABSENT = "there is no such object"
    CHANGED = "the object is no longer what was listed"
    REFUSED = "the store will never answer this"


def error_kind_of(error: BaseException) -> StoreErrorKind:
    """Which kind of trouble an error is."""
    text = str(error)
    status, code = _status(text), _first(_CODE, text)
    if any(server in text for server in _CREDENTIAL_SERVERS):
        return StoreErrorKind.PASSING if status >= 500 else StoreErrorKind.DENIED
    if code in (*_WILL_BE_RENEWED, *_BUSY):
        return StoreErrorKind.PASSING
    if type(error).__name__ in ("PreconditionError", "AlreadyExistsError") or status in (412, 416):
        return StoreErrorKind.CHANGED
    if isinstance(error, FileNotFoundError) or status == 404:
        return StoreErrorKind.NO_BUCKET if any(name in text for name in _NO_BUCKET) else StoreErrorKind.ABSENT
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or status in (301, 307, 400, 401, 403):
        return StoreErrorKind.DENIED
    is_answer = status < 500 and status not in (0, 408, 429)
    return StoreErrorKind.REFUSED if is_answer or "HTTP error" not in text and not status else StoreErrorKind.PASSING


def is_of_store(error: BaseException) -> bool:
    """Whether an error is a store's, and neither one of ours nor of the system. What is written piece by piece fails
    with an OSError that has a text and no number."""
    is_written = isinstance(error, OSError) and error.errno is None and not isinstance(error, RLJobError)
    return is_written or type(error).__module__.startswith("obstore")


def words_of(error: BaseException) -> str:
    """What the store said, on one line: `503 Service Unavailable (SlowDown: Please reduce your request rate.)`."""
    text = str(error).partition("\n\nDebug source:")[0]
    if any(server in text for server in _CREDENTIAL_SERVERS) and error_kind_of(error) is StoreErrorKind.DENIED:
        return "the environment holds no credentials, and no server of the cloud hands them out here"
    if status := _first(_STATUS, text):
        said = ": ".join(filter(None, (_first(_CODE, text), _first(_MESSAGE, text))))
        return status.strip() + (f" ({said})" if said else "")
    return _QUERY.sub(r"\1", " ".join(text.split()))


def _status(text: str) -> int:
    """0 where the error is not an answer of a server."""
    return int(_first(_STATUS, text)[:3] or 0)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match[1]


class VersionConflict(OSError):
    """The object is no longer what it was thought to be: a condition of a request does not hold."""

    def __init__(self, url: str) -> None:
        super().__init__(errno.EEXIST, "somebody else wrote or deleted it in between", url)


def failure_of(error: Exception, address: Address, url: str) -> OSError:
    """An error of the library about an object or a folder: Conflict, FileNotFoundError, PermissionError, ENODEV where
    there is no bucket, EIO for all others."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    words, kind = words_of(error), error_kind_of(error)
    if kind is StoreErrorKind.CHANGED:
        return VersionConflict(url)
    if kind is StoreErrorKind.NO_BUCKET:
        fix = "make it, or correct its name or the address of the store"
        return OSError(errno.ENODEV, f"there is no such bucket ({words}); {fix}", url)
    if kind is StoreErrorKind.ABSENT:
        return FileNotFoundError(errno.ENOENT, f"not there ({words})", url)
    if kind is StoreErrorKind.DENIED:
        return PermissionError(errno.EACCES, f"the store refuses: {words}; {needed(address)}", url)
    return OSError(errno.EIO, f"the store did not do it: {words}", url)


def is_for_good(failure: OSError) -> bool:
    """Whether the job names what it may not see, or what is not a bucket: another attempt would meet the same."""
    return isinstance(failure, PermissionError) or failure.errno == errno.ENODEV
