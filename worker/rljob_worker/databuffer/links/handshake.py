"""Why two data buffers do not come to terms. gRPC says of most such failures no more than of a dead peer."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from rljob_api.vocabulary.keys import TLS_CERTIFICATE, TLS_KEY
from rljob_worker.databuffer.links.certificate import lateness_of, misnaming_of, strangeness_of
from rljob_worker.databuffer.protocol.errors import Elsewhere, Refused
from rljob_worker.errors import PeerLost

Disagreement = tuple[type[PeerLost], str]
"""Why, in words that complete "it ..."; Elsewhere if it may be another server than the one that is meant."""


def disagreement(address: str, directory: Path, authority: x509.Certificate, seconds: float) -> Disagreement | None:
    """What the peer at host:port has against us or we against it; None where it is away, too busy, or content.

    Asked twice: who dies in the middle of a handshake is as silent as who refuses us, and is gone the next time.
    """
    found = _looked(address, directory, authority, seconds)
    return found and _looked(address, directory, authority, seconds)


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
    """Takes whatever the peer shows: it is looked at here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(directory / TLS_CERTIFICATE, directory / TLS_KEY)
    return context


def _flaw(shown: x509.Certificate, authority: x509.Certificate, host: str) -> Disagreement | None:
    if found := strangeness_of(shown, authority) or misnaming_of(shown, [host]):
        return Elsewhere, f"shows a certificate that {found}"
    found = lateness_of(shown, datetime.now(UTC))
    return (Refused, f"shows a certificate that {found}") if found else None


def _silence(shaken: ssl.SSLSocket) -> Disagreement | None:
    try:
        spoke = bool(shaken.recv(1))
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionResetError):
        spoke = False
    return None if spoke else (Refused, "does not take our certificate: its log says why")
