"""Tests of the certificates of hosts and their authority."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError, VerifiedClient

from rljob_api.certificates import Issued, issue

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
HOSTS = {"rollout-0": ("10.0.0.7", "j-rollout-0.j.team.svc"), "train-1": ()}


def certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def policy(issued: Issued, now: datetime = NOW) -> PolicyBuilder:
    """What browsers ask of a certificate, of one authority."""
    return PolicyBuilder().store(Store([certificate(issued.authority)])).time(now)


@pytest.mark.parametrize(
    "name",
    [x509.DNSName("rollout-0"), x509.DNSName("j-rollout-0.j.team.svc"), x509.IPAddress(ip_address("10.0.0.7"))],
)
def test_a_host_is_believed_to_be_who_it_is_called(name: x509.DNSName | x509.IPAddress) -> None:
    issued = issue("j", 1, HOSTS, NOW)
    shown, other = certificate(issued.hosts["rollout-0"].certificate), certificate(issued.hosts["train-1"].certificate)
    assert policy(issued).build_server_verifier(name).verify(shown, [])[0] == shown
    with pytest.raises(VerificationError, match="subjectAltName"):
        policy(issued).build_server_verifier(name).verify(other, [])


def test_the_host_comes_first_among_its_names_also_when_it_calls() -> None:
    issued = issue("j", 1, HOSTS, NOW)
    client = policy(issued).build_client_verifier().verify(certificate(issued.hosts["rollout-0"].certificate), [])
    assert isinstance(client, VerifiedClient) and client.subjects is not None
    assert [name.value for name in client.subjects] == ["rollout-0", ip_address("10.0.0.7"), "j-rollout-0.j.team.svc"]


def test_keys_are_of_one_host_each_and_the_authoritys_is_nowhere() -> None:
    issued = issue("j", 1, HOSTS, NOW)
    keys = {host: load_pem_private_key(pair.key, None) for host, pair in issued.hosts.items()}
    for host, key in keys.items():
        assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
        assert key.public_key() == certificate(issued.hosts[host].certificate).public_key()
    public = [key.public_key() for key in keys.values()] + [certificate(issued.authority).public_key()]
    assert all(a != b for i, a in enumerate(public) for b in public[:i])
    assert "PRIVATE" not in repr(issued) and b"PRIVATE" not in issued.authority


def test_another_authority_of_the_same_name_vouches_for_nobody_here() -> None:
    ours, theirs = issue("j", 1, HOSTS, NOW), issue("j", 1, HOSTS, NOW)
    with pytest.raises(VerificationError):
        policy(ours).build_client_verifier().verify(certificate(theirs.hosts["train-1"].certificate), [])


@pytest.mark.parametrize(
    "since, is_good",
    [
        (timedelta(minutes=-60), True),
        (timedelta(minutes=-61), False),
        (timedelta(days=30), True),
        (timedelta(days=30, seconds=1), False),
    ],
)
def test_clocks_may_be_an_hour_behind_and_an_attempt_lasts_a_month(since: timedelta, is_good: bool) -> None:
    issued = issue("j", 1, HOSTS, NOW)
    verifier = policy(issued, NOW + since).build_client_verifier()
    shown = certificate(issued.hosts["train-1"].certificate)
    if is_good:
        verifier.verify(shown, [])
    else:
        with pytest.raises(VerificationError, match="valid"):
            verifier.verify(shown, [])


def test_the_authority_is_called_after_job_and_attempt_and_long_names_are_cut() -> None:
    assert certificate(issue("j", 3, HOSTS, NOW).authority).subject.rfc4514_string() == "CN=rljob j attempt 3"
    issued = issue("j" * 63, 3, {"g" * 63 + "-10": ()}, NOW)
    # a common name has at most 64 characters: "rljob " takes six
    assert certificate(issued.authority).subject.rfc4514_string() == "CN=rljob " + "j" * 58
    (pair,) = issued.hosts.values()
    assert certificate(pair.certificate).subject.rfc4514_string() == "CN=" + "g" * 63 + "-"
