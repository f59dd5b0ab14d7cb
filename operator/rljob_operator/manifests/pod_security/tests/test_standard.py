"""Tests of the Pod Security Standards against the published pods."""

import json
from pathlib import Path

import pytest

from rljob_operator.manifests.pod_security.pod import CheckedPod
from rljob_operator.manifests.pod_security.standard import BASELINE, RESTRICTED, Enforced, enforced, violations

PUBLISHED = json.loads(Path(__file__).with_name("published_pods.json").read_text())["pods"]
"""Pods that Kubernetes publishes as examples, with the versions in which each level admits or refuses them."""
GOOD = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
GOOD_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def pod(security=None, *, of_pod=None, name="c", annotations=None, container=None, **spec):
    """A pod of one container that is admitted everywhere, except for what is given."""
    one = {"name": name, "image": "a:1", "securityContext": {**GOOD, **(security or {})}, **(container or {})}
    whole = {"containers": [one], "securityContext": {**GOOD_POD, **(of_pod or {})}, **spec}
    return {"metadata": {"annotations": annotations or {}}, "spec": whole}


def test_every_published_pod_gets_the_published_verdict():
    judged, wrong = 0, []
    for row in PUBLISHED:
        for words, ranges in row["verdicts"].items():
            level, verdict = words.split()
            for minor in (minor for first, last in ranges for minor in range(first, last + 1)):
                result = violations(row["pod"], level, minor)
                judged += 1
                if bool(result) != (verdict == "fail"):
                    wrong.append((words, minor, row["pod"], result))
    assert not wrong
    assert judged == 4420, "4,537 files less those of one level and version that hold one pod"


def test_each_check_refuses_a_published_pod():
    """A check that the examples do not reach would be one that nothing holds to its word."""
    unused = {check.find for check in (*BASELINE, *RESTRICTED)}
    for row in PUBLISHED:
        unused -= {find for find in unused if any(find(CheckedPod(row["pod"], 37)))}
    assert not unused


@pytest.mark.parametrize(("minor", "admitted"), [(34, False), (35, True)])
def test_root_of_a_user_namespace_is_nobody_since_1_35(minor, admitted):
    root = pod({"runAsUser": 0, "runAsNonRoot": False}, hostUsers=False)
    assert (violations(root, "restricted", minor) == []) is admitted
    unmasked = pod({"procMount": "Unmasked"}, hostUsers=False)
    assert (violations(unmasked, "baseline", minor) == []) is admitted
    assert violations(unmasked, "restricted", minor) == ["procMount Unmasked of container c"]


def test_ephemeral_containers_are_containers():
    debugger = {"name": "debugger", "image": "a:1", "securityContext": {"privileged": True}}
    assert violations(pod(ephemeralContainers=[debugger]), "baseline") == ["container debugger is privileged"]


def test_a_process_of_the_host_is_one_whatever_its_network():
    """The published examples have the host's network too, which is forbidden by itself."""
    hosted = pod({"windowsOptions": {"hostProcess": True}}, of_pod={"windowsOptions": {"hostProcess": True}})
    assert violations(hosted, "baseline") == ["hostProcess: true of the pod", "hostProcess: true of container c"]


def test_windows_has_no_seccomp_capabilities_or_escalation():
    bare = {"os": {"name": "windows"}, "containers": [{"name": "c", "securityContext": {"runAsNonRoot": True}}]}
    assert violations({"spec": bare}, "restricted", 25) == []
    assert len(violations({"spec": bare}, "restricted", 24)) == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"securityContext": "privileged"},
        {"containers": ["c", None, 1]},
        {"containers": [{"name": 1, "ports": {"hostPort": 1}, "securityContext": {"capabilities": {"add": "ALL"}}}]},
        {"volumes": [{"hostPath": "/etc"}, "etc"]},
        {"securityContext": {"sysctls": {"name": "a"}, "seLinuxOptions": ["spc_t"]}},
    ],
)
def test_what_has_another_shape_is_no_error(broken):
    """The API server refuses it by its place."""
    assert isinstance(violations({"spec": broken}, "restricted"), list)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, Enforced("privileged", 37)),
        ({"pod-security.kubernetes.io/enforce": "restricted"}, Enforced("restricted", 37)),
        (
            {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/enforce-version": "v1.28"},
            Enforced("baseline", 28),
        ),
        (
            {"pod-security.kubernetes.io/enforce": "strict", "pod-security.kubernetes.io/enforce-version": "latest"},
            Enforced("privileged", 37),
        ),
    ],
)
def test_a_namespace_says_level_and_version(labels, expected):
    assert enforced(labels) == expected
