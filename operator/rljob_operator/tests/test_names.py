import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator import names

JOBS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
GROUPS = st.from_regex(r"[a-z][a-z0-9]{0,11}", fullmatch=True)
HOSTS = st.integers(0, 16383)
PODS = st.tuples(JOBS, GROUPS, HOSTS, st.integers(1, 10**6))


@given(PODS)
def test_host_names_are_dns_labels(pod):
    job, group, host, _ = pod
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", names.host_name(job, group, host))


@given(PODS)
def test_a_pods_name_says_which_it_is_so_no_two_share_one(pod):
    found = re.fullmatch(r"(.+)-([a-z0-9]+)-(\d+)-a(\d+)", names.pod_name(*pod))
    assert found is not None
    job, group, host, attempt = found.groups()
    assert (job, group, int(host), int(attempt)) == pod


@given(JOBS)
def test_a_services_name_begins_with_a_letter(job):
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", names.service_name(job))


@given(JOBS, JOBS)
def test_no_two_jobs_share_a_service(job, other):
    """`1abc` and `rljob-1abc` live in one namespace."""
    for one in (job, f"rljob-{job}", f"rljob-rljob-{job}"):
        assert (names.service_name(one) == names.service_name(other)) == (one == other)


@given(PODS)
def test_what_a_pods_name_says_is_read_back(pod):
    job, group, host, attempt = pod
    assert names.parse_pod_name(names.pod_name(*pod)) == (names.host_name(job, group, host), attempt)


def test_other_names_say_nothing():
    assert names.parse_pod_name("small-train-0") is None


@pytest.mark.parametrize(
    ("job", "address"),
    [("grpo", "grpo-train-3.grpo.team.svc:8815"), ("7b", "7b-train-3.rljob-7b.team.svc:8815")],
)
def test_peers_find_each_other_below_the_service(job, address):
    assert names.peers_template(job, "team", 8815).format(job=job, group="train", host=3) == address
