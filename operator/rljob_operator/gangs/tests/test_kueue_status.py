"""What is reported to Kueue: all of our part, nothing of its own, and each only once."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rljob_operator.cluster.api import Object
from rljob_operator.gangs.kueue.status import finished_status, readiness_status, released_status
from rljob_operator.gangs.provider import Readiness

EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
NOT_READY = Readiness(False, {})
KUEUES_CONDITIONS = ("BlockedOnPreemptionGates", "Evicted", "Preempted", "DeactivationTarget", "Finished", "PodsReady")
KUEUES_FIELDS = (
    *("requeueState", "resourceRequests", "accumulatedPastExecutionTimeSeconds", "schedulingStats", "clusterName"),
    *("nominatedClusterNames", "unhealthyNodes", "preemptionGates", "admissionChecks"),
)
"""Of a Workload's status, what the manager that gives admissions owns beside them (v1beta2)."""


def condition(kind: str, status: str = "True", reason: str = "X", message: str = "") -> Object:
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": EARLIER, "observedGeneration": 3,
    }  # fmt: skip


def workload(*conditions: Object, **status: Any) -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "rljob-small", "namespace": "team", "resourceVersion": "7", "generation": 3},
        "spec": {},
        "status": {"conditions": list(conditions), **status},
    }


def applied(live: Object, manifest: Object) -> Object:
    """The Workload with our part of its status."""
    return {**copy.deepcopy(live), "status": {**live["status"], **manifest["status"]}}


def test_our_part_is_the_workloads_and_of_no_version() -> None:
    manifest = readiness_status(workload(), NOT_READY, NOW)
    assert manifest is not None
    about = {"name": "rljob-small", "namespace": "team"}
    assert {**manifest, "status": {}} == {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": about, "status": {},
    }  # fmt: skip
    assert manifest["status"] == {
        "conditions": [
            {
                "type": "PodsReady", "status": "False", "reason": "WaitForStart", "message": "not all pods are ready",
                "lastTransitionTime": NOW, "observedGeneration": 3,
            }
        ]
    }  # fmt: skip


def test_an_admission_is_given_back_of_the_version_that_was_seen() -> None:
    manifest = released_status(workload(condition("Evicted", message="preempted")), NOW)
    assert manifest["metadata"] == {"name": "rljob-small", "namespace": "team", "resourceVersion": "7"}


def test_what_kueue_wrote_beside_the_admission_stays_and_nothing_else_does() -> None:
    live = workload(
        *(condition(kind) for kind in (*KUEUES_CONDITIONS, "Ours")),
        **dict.fromkeys((*KUEUES_FIELDS, "admission", "reclaimablePods"), ["x"]),
    )
    status = released_status(live, NOW)["status"]
    assert set(status) == {"conditions", *KUEUES_FIELDS}
    kept = [item for item in status["conditions"] if item["type"] in KUEUES_CONDITIONS]
    assert kept == live["status"]["conditions"][:-1], "as they were"
    news = {item["type"]: item for item in status["conditions"] if item["type"] not in KUEUES_CONDITIONS}
    assert set(news) == {"Requeued", "QuotaReserved", "Admitted"}


def test_a_second_release_finds_its_own_conditions() -> None:
    live = workload(condition("Requeued", "True"), condition("Evicted", reason="PodsReadyTimeout", message="late"))
    result = {item["type"]: item for item in released_status(live, NOW)["status"]["conditions"]}
    assert len(result) == 4 and (result["Requeued"]["status"], result["Requeued"]["reason"]) == (
        "False",
        "PodsReadyTimeout",
    )
    assert (result["QuotaReserved"]["reason"], result["QuotaReserved"]["message"]) == ("Pending", "late")
    assert result["Admitted"]["reason"] == "NoReservation"


def test_what_a_second_release_says_again_keeps_its_time() -> None:
    live = workload(condition("Requeued", "False", "Other"), condition("Evicted", reason="Other"))
    result = {item["type"]: item for item in released_status(live, NOW)["status"]["conditions"]}
    assert (result["Requeued"]["lastTransitionTime"], result["Admitted"]["lastTransitionTime"]) == (EARLIER, NOW)


def test_a_job_that_was_not_evicted_gives_its_place_back_in_words_of_ours() -> None:
    result = {item["type"]: item for item in released_status(workload(), NOW)["status"]["conditions"]}
    assert result["Requeued"]["reason"] == "Released" and result["Requeued"]["status"] == "False"
    assert result["QuotaReserved"]["message"] == "the job has given its pods back"


@pytest.mark.parametrize(("reason", "status"), [("Preempted", "True"), ("NodeFailures", "True"), ("Other", "False")])
def test_after_some_evictions_a_job_may_queue_again_at_once(reason: str, status: str) -> None:
    live = workload(condition("Evicted", reason=reason))
    assert {item["type"]: item["status"] for item in released_status(live, NOW)["status"]["conditions"]}[
        "Requeued"
    ] == status


def test_pods_that_ended_are_reported_once_and_never_fewer() -> None:
    live = workload(admission={}, reclaimablePods=[{"name": "train", "count": 2}])
    manifest = readiness_status(live, Readiness(True, {"train": 1, "rollout": 3, "other": 0}), NOW)
    assert manifest is not None
    reported = [{"name": "train", "count": 2}, {"name": "rollout", "count": 3}]
    assert manifest["status"]["reclaimablePods"] == reported
    after = applied(live, manifest)
    assert readiness_status(after, Readiness(True, {"train": 1, "rollout": 3}), NOW) is None
    more = readiness_status(after, Readiness(True, {"rollout": 4}), NOW)
    assert more is not None and more["status"]["reclaimablePods"][1] == {"name": "rollout", "count": 4}


def test_pods_that_nobody_speaks_of_have_not_ended() -> None:
    """Kueue knows of one group, the other has just ended; -1 and 1 pods would both be reported."""
    live = workload(admission={}, reclaimablePods=[{"name": "train", "count": 0}])
    manifest = readiness_status(live, Readiness(True, {}), NOW)
    assert manifest is not None and "reclaimablePods" not in manifest["status"]
    manifest = readiness_status(live, Readiness(True, {"rollout": 0}), NOW)
    assert manifest is not None and "reclaimablePods" not in manifest["status"]


def test_without_quota_there_is_none_to_give_back() -> None:
    manifest = readiness_status(workload(), Readiness(True, {"train": 2}), NOW)
    assert manifest is not None and "reclaimablePods" not in manifest["status"]
    assert readiness_status(applied(workload(), manifest), Readiness(True, {"train": 2}), NOW) is None


def test_an_end_keeps_what_was_said_of_pods() -> None:
    live = workload(condition("PodsReady"), admission={}, reclaimablePods=[{"name": "train", "count": 2}])
    manifest = finished_status(live, "the job has failed", NOW)
    assert manifest is not None
    assert [item["type"] for item in manifest["status"]["conditions"]] == ["PodsReady", "Finished"]
    assert manifest["status"]["reclaimablePods"] == [{"name": "train", "count": 2}]
    assert finished_status(applied(live, manifest), "the job has failed", NOW) is None


def test_readiness_beside_an_end_leaves_the_end() -> None:
    live = workload(condition("Finished"))
    manifest = readiness_status(live, NOT_READY, NOW)
    assert manifest is not None
    assert [item["type"] for item in manifest["status"]["conditions"]] == ["Finished", "PodsReady"]


def test_other_words_of_the_same_state_keep_its_time() -> None:
    live = workload(condition("PodsReady", "False", "WaitForStart", "other words"))
    manifest = readiness_status(live, NOT_READY, NOW)
    assert manifest is not None
    (result,) = manifest["status"]["conditions"]
    assert (result["message"], result["lastTransitionTime"]) == ("not all pods are ready", EARLIER)
    changed = readiness_status(live, Readiness(True, {}), NOW)
    assert changed is not None and changed["status"]["conditions"][0]["lastTransitionTime"] == NOW
