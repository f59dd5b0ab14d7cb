"""Tests of the security contexts of pods."""

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_operator.manifests import pod_security_problem, pods
from rljob_operator.manifests.pod_security.standard import violations
from rljob_operator.manifests.tests.builders import make_context, one_group, vendor_context

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
BASELINE = {"pod-security.kubernetes.io/enforce": "baseline"}
ROOT = {"spec": {"containers": [{"name": "worker", "securityContext": {"runAsUser": 0, "runAsNonRoot": False}}]}}
PRIVILEGED = "podSecurity=Privileged"
NEED_MORE = {"ascend-910", "ascend-910b", "huawei-npu", "gaudi"}


@pytest.mark.parametrize("profile", sorted(set(DEFAULT) - NEED_MORE))
def test_pods_meet_the_restricted_standard_by_default(profile):
    assert violations(pods(vendor_context(profile), 1)[0], "restricted") == []


def test_a_restricted_namespace_admits_an_ordinary_job():
    assert pod_security_problem(make_context(), RESTRICTED) is None
    assert pod_security_problem(make_context(), {}) is None


def test_a_driver_mount_needs_a_privileged_job_and_namespace():
    ascend = one_group("ascend-910", 8)
    problem = pod_security_problem(make_context(ascend), {})
    assert "workerGroups[0] train with profile ascend-910 needs what spec.podSecurity Restricted forbids" in problem
    assert "hostPath volume ascend-driver" in problem and "set spec.podSecurity to Privileged" in problem
    problem = pod_security_problem(make_context(ascend, PRIVILEGED), BASELINE)
    assert "namespace team forbids (pod-security.kubernetes.io/enforce=baseline)" in problem
    assert pod_security_problem(make_context(ascend, PRIVILEGED), {}) is None
    without = {"ascend-910": {"hostPaths": []}}
    assert pod_security_problem(make_context(ascend, profiles=without), RESTRICTED) is None


def test_every_need_of_a_profile_is_named():
    problem = pod_security_problem(make_context(one_group("gaudi", 8), PRIVILEGED), RESTRICTED)
    assert "hostIPC: true, capability SYS_NICE of container worker" in problem


def test_what_a_template_adds_counts_too():
    problem = pod_security_problem(make_context(one_group(template=ROOT)), {})
    assert "container worker does not set runAsNonRoot: true, container worker runs as root" in problem
    assert "set spec.podSecurity to Baseline" in problem
    assert pod_security_problem(make_context(one_group(template=ROOT), "podSecurity=Baseline"), BASELINE) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostNetwork": True}, "hostNetwork: true"),
        ({"containers": [{"name": "worker", "securityContext": {"privileged": True}}]}, "worker is privileged"),
        ({"containers": [{"name": "worker", "ports": [{"containerPort": 1, "hostPort": 1}]}]}, "hostPort 1"),
        ({"volumes": [{"name": "nfs", "nfs": {"server": "a", "path": "/"}}]}, "nfs volume nfs"),
        ({"containers": [{"name": "x", "image": "y"}]}, "container x does not drop ALL capabilities"),
    ],
)
def test_a_standard_names_what_it_forbids(spec, words):
    (pod,) = pods(make_context(one_group(template={"spec": spec})), 1)
    assert any(words in violation for violation in violations(pod, "restricted"))


def test_rdma_locks_memory_only_where_anything_is_allowed():
    def added(*overrides):
        (pod,) = pods(make_context(one_group("nvidia", 1, rdma={"resource": "rdma/hca"}), *overrides), 1)
        return pod["spec"]["containers"][0]["securityContext"]["capabilities"].get("add")

    assert (added(), added(PRIVILEGED)) == (None, ["IPC_LOCK"])
