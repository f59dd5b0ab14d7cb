"""A store's failures as OSErrors whose `strerror` says what the store said and what to do: pure."""

from __future__ import annotations

import errno

from rljob_worker.storage.address import Address
from rljob_worker.storage.connection import needed
from rljob_worker.storage.trouble import Trouble, trouble_of, words_of


class Conflict(OSError):
    """The object is no longer what it was thought to be: a condition of a request does not hold."""

    def __init__(self, url: str) -> None:
        super().__init__(errno.EEXIST, "somebody else wrote or deleted it in between", url)


def failure_of(error: Exception, address: Address, url: str) -> OSError:
    """An error of the library about an object or a folder: Conflict, FileNotFoundError, PermissionError, ENODEV where
    there is no bucket, EIO for all others."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    words, trouble = words_of(error), trouble_of(error)
    if trouble is Trouble.CHANGED:
        return Conflict(url)
    if trouble is Trouble.NO_BUCKET:
        fix = "make it, or correct its name or the address of the store"
        return OSError(errno.ENODEV, f"there is no such bucket ({words}); {fix}", url)
    if trouble is Trouble.ABSENT:
        return FileNotFoundError(errno.ENOENT, f"not there ({words})", url)
    if trouble is Trouble.DENIED:
        return PermissionError(errno.EACCES, f"the store refuses: {words}; {needed(address)}", url)
    return OSError(errno.EIO, f"the store did not do it: {words}", url)


def is_for_good(failure: OSError) -> bool:
    """Whether the job names what it may not see, or what is no bucket: another attempt would meet the same."""
    return isinstance(failure, PermissionError) or failure.errno == errno.ENODEV
