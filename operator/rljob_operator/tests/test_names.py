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


@pytest.mark.parametrize(
    ("job", "address"),
    [("grpo", "grpo-train-3.grpo.team.svc:8815"), ("7b", "7b-train-3.rljob-7b.team.svc:8815")],
)
def test_peers_find_each_other_below_the_service(job, address):
    assert names.peers_template(job, "team", 8815).format(job=job, group="train", host=3) == address
