"""What is wrong with a certificate, in words that complete "it ...". Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID


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
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _shown(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds")
