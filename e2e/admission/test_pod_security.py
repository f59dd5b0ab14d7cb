"""Pod Security admission, the chart's policies and the operator say the same of every pod that Kubernetes publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.admission.api_server import AdmissionApiServer, AdmissionResponse
from rljob_operator.manifests import pod_security
from rljob_operator.manifests.pod_security.standard import violations

PUBLISHED = Path(pod_security.__file__).parent / "tests" / "published_pods.json"
MINORS = (25, 30, 34)
"""Versions of the standards that API server v1.34 has: the first of a policy, one between, its own."""
NEWER = (37,)
LEVELS = ("baseline", "restricted")

Manifest = dict[str, Any]


def pods() -> list[Manifest]:
    return [row["pod"] for row in json.loads(PUBLISHED.read_text())["pods"]]


@pytest.fixture(scope="module")
def namespaces(server: AdmissionApiServer) -> None:
    """For each level and version one that Pod Security admission keeps, and one that the chart's policy does."""
    policies = [(f"policy-{level}-{minor}", level, minor) for level in LEVELS for minor in (*MINORS, *NEWER)]
    for name, level, minor in policies:
        server.make_namespace(name)
        server.apply_policies(name, name, {"podSecurity": level.capitalize(), "podSecurityVersion": f"v1.{minor}"})
    for level in LEVELS:
        for minor in MINORS:
            server.make_namespace(f"standard-{level}-{minor}", enforce=level, **{"enforce-version": f"v1.{minor}"})
    for name, _, _ in policies:
        server.wait_for_policy(name)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("level", LEVELS)
def test_policy_operator_and_pod_security_admission_agree(
    server: AdmissionApiServer, namespaces: None, level: str, minor: int
) -> None:
    compared, wrong = 0, []
    for pod in pods():
        standard = server.ask_pod(f"standard-{level}-{minor}", pod)
        if standard.is_invalid:  # no pod of this version at all, such as one with two kinds of AppArmor profiles
            continue
        policy = server.ask_pod(f"policy-{level}-{minor}", pod)
        result = violations(pod, level, minor)
        compared += 1
        if not (standard.is_admitted == (not result) == (not is_refused_by_standard(policy))):
            wrong.append((pod, standard, policy, result))
    print(f"{level} v1.{minor}: {compared} pods compared")
    assert not wrong
    assert compared > 300


@pytest.mark.parametrize("minor", NEWER)
@pytest.mark.parametrize("level", LEVELS)
def test_policy_and_operator_agree_on_what_is_newer(
    server: AdmissionApiServer, namespaces: None, level: str, minor: int
) -> None:
    for pod in pods():
        policy = server.ask_pod(f"policy-{level}-{minor}", pod)
        if not policy.is_invalid:
            assert is_refused_by_standard(policy) == bool(violations(pod, level, minor))


def is_refused_by_standard(answer: AdmissionResponse) -> bool:
    """A policy names the first of its rules that a pod breaks; those of the standard come first."""
    assert "resulted in error" not in answer.message, answer.message
    return not answer.is_admitted and "podSecurity: " in answer.message
