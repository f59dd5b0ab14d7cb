"""What a data buffer shows the others, and by what it knows them: certificates, read and checked when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from rljob_api.vocabulary.keys import ENV_TLS_DIR, TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY
from rljob_worker.databuffer.links.certificate import lateness_of, misnaming_of, strangeness_of
from rljob_worker.databuffer.links.handshake import Disagreement, disagreement
from rljob_worker.databuffer.protocol.errors import NotValidNow
from rljob_worker.errors import InvalidJob

_FIX = f"whoever starts the attempt issues {TLS_AUTHORITY}, {TLS_CERTIFICATE} and {TLS_KEY} anew for every attempt"

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM, and where it was read."""

    directory: Path
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def of_server(self) -> dict[str, Any]:
        """Options of a Flight server: it takes calls only of those whom the authority knows."""
        pair = (self.certificate, self.key)
        return {"tls_certificates": [pair], "verify_client": True, "root_certificates": self.authority}

    def of_client(self) -> dict[str, Any]:
        """Options of a Flight client."""
        return {"tls_root_certs": self.authority, "cert_chain": self.certificate, "private_key": self.key}

    def disagreement(self, address: str, seconds: float) -> Disagreement | None:
        """Why nothing can be said to the peer at host:port; None if certificates are not the reason."""
        return disagreement(address, self.directory, x509.load_pem_x509_certificate(self.authority), seconds)


def read_credentials(directory: Path, names: Sequence[str], now: datetime | None = None) -> Credentials:
    """The files of a directory, for a host that is called by these names.

    Raises InvalidJob for a file that is missing, unreadable, or of something else, and NotValidNow.
    """
    read = {name: _read(directory / name) for name in (TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY)}
    authority = _parsed(directory / TLS_AUTHORITY, read[TLS_AUTHORITY])
    path = directory / TLS_CERTIFICATE
    certificate = _parsed(path, read[TLS_CERTIFICATE])
    _check_key(directory / TLS_KEY, read[TLS_KEY], certificate)
    if flaw := strangeness_of(certificate, authority) or misnaming_of(certificate, names):
        raise InvalidJob(f"the certificate {path} {flaw}; {_FIX}")
    if flaw := lateness_of(certificate, now or datetime.now(UTC)):
        raise NotValidNow(f"the certificate {path} {flaw}; a new attempt gets new ones")
    return Credentials(directory, read[TLS_AUTHORITY], read[TLS_CERTIFICATE], read[TLS_KEY])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidJob(f"{ENV_TLS_DIR}: {path} cannot be read: {error.strerror}; {_FIX}") from error


def _parsed(path: Path, data: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise InvalidJob(f"{path} is no certificate in PEM; {_FIX}") from error


def _check_key(path: Path, data: bytes, certificate: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it has a password
        raise InvalidJob(f"{path} is no private key in PEM without a password; {_FIX}") from error
    if _spelt(key.public_key()) != _spelt(certificate.public_key()):
        raise InvalidJob(f"{path} is not the key of the certificate {TLS_CERTIFICATE} beside it; {_FIX}")


def _spelt(key: Any) -> bytes:
    data: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return data
