"""The address book of the data buffers: a DNS template, or a file of the local supervisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import InvalidJob, StorageError

_FIX = "write one list of host:port per worker group, in order of the hosts, aside and rename it"


class AddressBook:
    """Addresses by host: a DNS template, or a JSON file {group: ["host:port", ...]} that may appear late; null in the
    place of a host that is not there now."""

    def __init__(self, peers: str, job: str) -> None:
        self._peers = peers
        self._job = job
        self._address_book: dict[str, Any] | None = None
        self._read_at: tuple[int, int] | None = None
        """Inode and time of the file that was read."""

    @property
    def lists_the_living(self) -> bool:
        """The supervisor writes its file when every data buffer serves; names in a DNS template say nothing."""
        return self._address_book is not None

    def find(self, host: Host) -> str | None:
        """host:port, or None while the file, or the host, is not there. Raises InvalidJob for a book with a mistake."""
        if not self._peers.endswith(".json"):
            return self._from_template(host)
        self._refresh()
        return None if self._address_book is None else self._look_up(self._address_book, host)

    def _from_template(self, host: Host) -> str:
        try:
            return self._peers.format(job=self._job, group=host.group, host=host.index)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            known = "{job}, {group}, {host}"
            raise InvalidJob(
                f"RLJOB_PEERS {self._peers} is not a template of addresses: {error!r}; it may name {known}"
            ) from error

    def _refresh(self) -> None:
        """Read the file when it is another than the one that was read; one that is gone leaves what it said."""
        try:
            status = Path(self._peers).stat()
            if self._read_at != (at := (status.st_ino, status.st_mtime_ns)):
                self._address_book, self._read_at = self._read(), at
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"the address book {self._peers} cannot be read: {error}") from error

    def _read(self) -> dict[str, Any]:
        try:
            addresses = json.loads(Path(self._peers).read_bytes())
        except ValueError as error:
            raise InvalidJob(f"the address book {self._peers} is not JSON: {error}; {_FIX}") from error
        if not isinstance(addresses, dict):
            raise InvalidJob(f"the address book {self._peers} is not an object of lists by group; {_FIX}")
        return addresses

    def _look_up(self, entries: dict[str, Any], host: Host) -> str | None:
        def wrong(what: str) -> InvalidJob:
            return InvalidJob(f"the address book {self._peers} has no address of host {host}: {what}; {_FIX}")

        if host.group not in entries:
            raise wrong(f"group {host.group} is not in it, only {', '.join(sorted(entries)) or 'nothing'}")
        addresses = entries[host.group]
        if not isinstance(addresses, list):
            raise wrong(f"what it has for group {host.group} is not a list")
        if host.index >= len(addresses):
            raise wrong(f"its list for group {host.group} has {len(addresses)} hosts")
        address = addresses[host.index]
        if address is None:
            return None
        if not isinstance(address, str) or not _is_address(address):
            raise wrong(f"{json.dumps(address)[:80]} is not host:port")
        return address


def _is_address(address: str) -> bool:
    name, _, port = address.rpartition(":")
    return bool(name) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
