"""What a data buffer shows the others, and by what it knows them: certificates, read and checked when it starts; and
why two data buffers do not come to terms. gRPC says of most such failures no more than of a dead peer."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from rljob_api.vocabulary.keys import ENV_TLS_DIR, TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY
from rljob_worker.databuffer.protocol.errors import Elsewhere, NotValidNow, Refused
from rljob_worker.errors import InvalidJob, PeerLost

Disagreement = tuple[type[PeerLost], str]
"""Why, in words that complete "it ..."; Elsewhere if it may be another server than the one that is meant."""

_FIX = f"whoever starts the attempt issues {TLS_AUTHORITY}, {TLS_CERTIFICATE} and {TLS_KEY} anew for every attempt"

Read = TypeVar("Read")


def disagreement(address: str, directory: Path, authority: x509.Certificate, seconds: float) -> Disagreement | None:
    """What the peer at host:port has against us or we against it; None where it is away, too busy, or content.

    Asked twice: who dies in the middle of a handshake is as silent as who refuses us, and is gone the next time.
    """
    first = _looked(address, directory, authority, seconds)
    return first and _looked(address, directory, authority, seconds)


def _looked(address: str, directory: Path, authority: x509.Certificate, seconds: float) -> Disagreement | None:
    """The peer shows its certificate before ours is looked at. A gRPC server to which ours says nothing hangs up then,
    without a word, and one that takes it speaks first."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as plain:
            plain.settimeout(seconds)
            try:
                shaken = _context(directory).wrap_socket(plain, server_hostname=host)
            except ssl.SSLEOFError:
                return None
            except ssl.SSLError as error:
                return Elsewhere, f"speaks no TLS ({error.reason}): is dataBuffer.tls on in its job?"
            with shaken:
                shown = shaken.getpeercert(binary_form=True)
                assert shown is not None, "a server shows a certificate"
                return _flaw(x509.load_der_x509_certificate(shown), authority, host) or _silence(shaken)
    except OSError:
        return None


def _context(directory: Path) -> ssl.SSLContext:
    """Accepts any certificate of the peer: it is checked here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(directory / TLS_CERTIFICATE, directory / TLS_KEY)
    return context


def _flaw(shown: x509.Certificate, authority: x509.Certificate, host: str) -> Disagreement | None:
    if lateness := strangeness_of(shown, authority) or misnaming_of(shown, [host]):
        return Elsewhere, f"shows a certificate that {lateness}"
    lateness = lateness_of(shown, datetime.now(UTC))
    return (Refused, f"shows a certificate that {lateness}") if lateness else None


def _silence(shaken: ssl.SSLSocket) -> Disagreement | None:
    try:
        spoke = bool(shaken.recv(1))
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionResetError):
        spoke = False
    return None if spoke else (Refused, "does not take our certificate: its log says why")


def lateness_of(certificate: x509.Certificate, now: datetime) -> str | None:
    """Why it is not valid now."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return f"expired at {_shown(end)}, and it is {_shown(now)}"
    if now < begin:
        return f"is valid from {_shown(begin)} on, and it is {_shown(now)} by the clock of this host: set the clock"
    return None


def strangeness_of(certificate: x509.Certificate, authority: x509.Certificate) -> str | None:
    """Why it is none of this attempt's."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):  # another key, another name, another kind of key
        issuer, ours = _common_name(certificate.issuer), _common_name(authority.subject)
        which = "another authority of that name" if issuer == ours else f"the authority {ours!r}"
        return f"was issued by {issuer!r}, and this attempt has {which}"
    return None


def misnaming_of(certificate: x509.Certificate, names: Collection[str]) -> str | None:
    """Which of `names`, by which its owner is called, it does not hold."""
    held = names_in(certificate)
    if missing := [name for name in names if name not in held]:
        return f"is for {', '.join(held) or 'nobody'}, and not for {', '.join(missing)}"
    return None


def names_in(certificate: x509.Certificate) -> list[str]:
    """Names and addresses, the host's own first."""
    try:
        value = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in value]


def _common_name(name: x509.Name) -> str:
    attributes = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attributes[0].value) if attributes else name.rfc4514_string()


def _shown(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds")


@dataclass(frozen=True, slots=True)
class TlsCredentials:
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


def read_credentials(directory: Path, names: Sequence[str], now: datetime | None = None) -> TlsCredentials:
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
    return TlsCredentials(directory, read[TLS_AUTHORITY], read[TLS_CERTIFICATE], read[TLS_KEY])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidJob(f"{ENV_TLS_DIR}: {path} cannot be read: {error.strerror}; {_FIX}") from error


def _parsed(path: Path, data: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise InvalidJob(f"{path} is not a certificate in PEM; {_FIX}") from error


def _check_key(path: Path, data: bytes, certificate: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it has a password
        raise InvalidJob(f"{path} is not a private key in PEM without a password; {_FIX}") from error
    if _spelt(key.public_key()) != _spelt(certificate.public_key()):
        raise InvalidJob(f"{path} is not the key of the certificate {TLS_CERTIFICATE} next to it; {_FIX}")


def _spelt(key: Any) -> bytes:
    data: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return data
