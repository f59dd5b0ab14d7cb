"""Certificates of one attempt on this machine, as files that their hosts alone read."""

import os
from pathlib import Path

from rljob_api.certificates import Issued
from rljob_api.vocabulary.keys import TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY
from rljob_worker.errors import StorageError


def write_issued(issued: Issued, directory: Path) -> None:
    """What each host needs, and nobody else's key, in `directory`/HOST; StorageError."""
    try:
        for host, pair in issued.hosts.items():
            place = directory / host
            place.mkdir(mode=0o700, parents=True)
            _write(place / TLS_AUTHORITY, issued.authority)
            _write(place / TLS_CERTIFICATE, pair.certificate)
            _write(place / TLS_KEY, pair.key)
    except OSError as error:
        message = f"certificates cannot be written to {directory}: {error.strerror}; free space or set TMPDIR"
        raise StorageError(message) from error


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
