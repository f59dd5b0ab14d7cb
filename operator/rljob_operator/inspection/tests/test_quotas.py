"""Whether a gang fits into the quotas of its namespace."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.inspection.quotas import asked_for, quota_problem
from rljob_operator.manifests.pod.resources import quota_requests
from rljob_operator.manifests.tests.builders import make_context, one_group


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": spec, "status": {"hard": hard, "used": used}}


def container(requests: dict[str, str], limits: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests, "limits": limits or {}}, **more}


def test_a_pod_asks_for_its_peak() -> None:
    """The sidecar's 1 stays: 1 + 4 while the init container runs is more than 1 + 2 + 1 afterwards."""
    spec = {
        "initContainers": [container({"cpu": "1"}, restartPolicy="Always"), container({"cpu": "4"})],
        "containers": [container({"cpu": "2", "memory": "1Gi"}), container({"cpu": "1000m"}, {"x.com/gpu": "8"})],
    }
    result = quota_requests(spec)
    assert (result["pods"], result["count/pods"]) == (1, 1)
    assert (result["cpu"], result["requests.cpu"], result["limits.cpu"]) == (5, 5, 0)
    assert result["requests.memory"] == 2**30
    assert (result["requests.x.com/gpu"], result["limits.x.com/gpu"]) == (8, 8), "a limit is a request"


def test_a_gang_asks_for_all_its_pods() -> None:
    total = asked_for(make_context("data.batchSize=32", one_group("nvidia-h100", 8, 2)))
    assert (total["pods"], total["requests.nvidia.com/gpu"]) == (2, 16)


@pytest.mark.parametrize(
    ("hard", "used", "spec", "fits"),
    [
        ({"pods": "4"}, {"pods": "2"}, {}, True),
        ({"pods": "4"}, {"pods": "3"}, {}, False),
        ({"pods": "4"}, {"pods": "9"}, {}, False),
        ({"pods": "4"}, {}, {}, True),
        ({"requests.memory": "1Mi"}, {}, {}, False),
        ({"requests.nvidia.com/gpu": "0"}, {}, {}, True),
        ({"pods": "0"}, {}, {"scopes": ["BestEffort"]}, True),
        ({"pods": "0"}, {}, {"scopeSelector": {"matchExpressions": []}}, True),
        ({"memory": "16Ei"}, {"memory": "1"}, {}, True),
        ({"services": "0"}, {}, {}, True),
    ],
)
def test_what_fits(hard: dict[str, str], used: dict[str, str], spec: dict[str, Any], fits: bool) -> None:
    result = quota_problem(make_context(one_group(replicas=2)), [quota({}, {}), quota(hard, used, **spec)])
    assert (result is None) is fits


def test_the_words_say_which_quota_and_how_full_it_is() -> None:
    result = quota_problem(make_context(one_group(replicas=2)), [quota({"pods": "4"}, {"pods": "3"})])
    assert result is not None and result.reason == "QuotaExceeded" and not result.is_final
    assert result.message.startswith("ResourceQuota team: 3 of 4 pods are used, and the 2 pods of the gang do not fit")
