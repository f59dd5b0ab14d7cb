"""One certificate authority for one attempt of a job, and a certificate for each of its hosts.

The authority's key does not outlive `issue`: nobody can add a host to an attempt, and what is stolen from one opens
nothing in the next, which trusts another authority. Whoever starts an attempt issues them, the operator as well as the
local supervisor: so they are made here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=30)
"""An attempt may last longer: what is connected stays connected, and who has to connect anew ends the attempt, with
exit code 75, for one that gets new certificates."""
CLOCK_SKEW = timedelta(hours=1)
"""How far the clock of a host may be behind that of the issuer."""
MAX_COMMON_NAME = 64
"""Characters that a common name in X.509 has at most; what is longer is cut."""

_SIGNS = {"key_cert_sign": True, "digital_signature": False}
_SHOWS = {"key_cert_sign": False, "digital_signature": True}
_NEVER = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Issued:
    """What the hosts of one attempt need."""

    authority: bytes
    """Certificate of the authority, PEM: everybody's."""
    hosts: Mapping[str, KeyPair]
    """Each of one host, such as `train-0`, and of no other."""


def issue(job: str, attempt: int, hosts: Mapping[str, Iterable[str]], now: datetime) -> Issued:
    """Certificates for `hosts`, which are the names or addresses by which each is called.

    The host itself, such as `train-0`, is the first name in its certificate: by it a data buffer knows who calls.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"rljob {job} attempt {attempt}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(subject, subject, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(_SIGNS), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )

    def for_host(host: str, called: Iterable[str]) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [_general_name(name) for name in (host, *called)]
        certificate = (
            _builder(_name(host), subject, key, now)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_usage(_SHOWS), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            # tells authorities of one name apart: those of two jobs that had it one after the other
            .add_extension(x509.AuthorityKeyIdentifier(identifier.digest, None, None), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        return KeyPair(
            certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )

    pairs = {host: for_host(host, called) for host, called in hosts.items()}
    return Issued(authority.public_bytes(Encoding.PEM), pairs)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _usage(asked: Mapping[str, bool]) -> x509.KeyUsage:
    return x509.KeyUsage(**asked, **_NEVER, encipher_only=False, decipher_only=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:MAX_COMMON_NAME])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
