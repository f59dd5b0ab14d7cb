"""Tests of the names of objects."""

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
    match = re.fullmatch(r"(.+)-([a-z0-9]+)-(\d+)-a(\d+)", names.pod_name(*pod))
    assert match is not None
    job, group, host, attempt = match.groups()
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


SERVICES = st.from_regex(r"[a-z][a-z0-9]{0,9}(_[a-z0-9]{1,9}){0,2}", fullmatch=True)
MODELS = st.tuples(JOBS, SERVICES, st.integers(1, 10**6))


@given(MODELS)
def test_the_name_of_a_models_pod_says_which_it_is_so_no_two_share_one(model):
    name = names.service_pod_name(*model)
    assert names.parse_service_pod_name(name) == model[1:] and names.parse_pod_name(name) is None
    assert name.startswith(f"{model[0]}-{model[1].replace('_', '.')}-")
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", part) for part in name.split(".")), "a DNS subdomain"


@given(MODELS)
def test_the_name_of_a_ray_service_is_short_and_says_its_start(model):
    name = names.ray_service_name(*model)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?", name), "KubeRay takes 47 characters"
    assert names.parse_ray_service_name(name) == model[2]


def test_no_two_services_share_a_ray_service():
    assert names.ray_service_name("a-b", "c", 1) != names.ray_service_name("a", "b_c", 1)
    assert names.ray_service_name("a", "b", 1) == names.ray_service_name("a", "b", 1)
    assert names.parse_ray_service_name("somebodys") is None


@given(SERVICES, SERVICES)
def test_pod_sets_of_heads_and_copies_are_labels_of_their_own(service, other):
    assert names.service_head_pod_set(service) != names.service_pod_set(other)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", names.service_head_pod_set(service))


@given(PODS)
def test_a_gangs_pod_is_no_models(pod):
    assert names.parse_service_pod_name(names.pod_name(*pod)) is None


@given(SERVICES, SERVICES)
def test_hosts_of_models_are_dns_labels_and_no_two_share_one(service, other):
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", names.service_host(service))
    assert (names.service_host(service) == names.service_host(other)) == (service == other)


@given(JOBS, JOBS)
def test_the_domain_of_models_is_no_other_jobs_service(job, other):
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", names.services_domain(job))
    for one in (other, f"services-{job}", f"rljob-services-{job}"):
        assert names.services_domain(job) != names.service_name(one)


def test_a_model_is_found_below_its_domain():
    url = names.service_url("7b", "team", "my_judge", 8816)
    assert url == "http://my-judge.rljob-services-7b.team.svc:8816/my_judge"


@pytest.mark.parametrize(
    ("job", "address"),
    [("grpo", "grpo-train-3.grpo.team.svc:8815"), ("7b", "7b-train-3.rljob-7b.team.svc:8815")],
)
def test_peers_find_each_other_below_the_service(job, address):
    assert names.peers_template(job, "team", 8815).format(job=job, group="train", host=3) == address


def test_a_guest_is_not_taken_for_a_pod_of_the_gang():
    name = names.guest_pod_name("my-job", "rollout", 12, 3, 45)
    assert name == "my-job-rollout-12-a3-g45"
    assert names.parse_guest_pod_name(name) == (12, 3, 45)
    assert names.parse_pod_name(name) is None
    assert names.parse_guest_pod_name(names.pod_name("my-job", "rollout", 12, 3)) is None
    assert names.parse_service_pod_name(name) is None
