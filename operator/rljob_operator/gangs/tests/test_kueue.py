"""Tests of Kueue's part of the gang: workloads, admission, eviction."""

import copy

import pytest

from rljob_operator.gangs.kueue.gang import Kueue
from rljob_operator.gangs.kueue.workload import QueuePriority
from rljob_operator.gangs.provider import ClusterObjectReference, Readiness
from rljob_operator.manifests import pods
from rljob_operator.manifests.tests.builders import TWO_GROUPS, UID, make_context, one_group
from rljob_operator.states.situation.facts import Admission, AdmissionState

EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
READY = Readiness(True, {})
FLAVOR = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "spot"},
    "spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
}


def kueue(**options):
    return Kueue(now=lambda: NOW, **options)


def condition(kind, status="True", reason="Reason", message=""):
    return {
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": EARLIER, "observedGeneration": 1,
    }  # fmt: skip


def workload(*conditions, **status):
    """The Workload of a job of two groups, as the API server returns it."""
    (made,) = kueue().objects(make_context(TWO_GROUPS), 1)
    made = copy.deepcopy(made)
    made["metadata"] |= {"resourceVersion": "7", "generation": 1}
    made["status"] = {"conditions": list(conditions), **status}
    return made


def admitted(*conditions, **status):
    assignments = [
        {"name": "train", "flavors": {"cpu": "spot", "memory": "spot"}, "count": 2},
        {"name": "rollout", "flavors": {"cpu": "spot"}, "count": 4},
    ]
    admission = {"clusterQueue": "rl", "podSetAssignments": assignments}
    return workload(condition("QuotaReserved"), condition("Admitted"), *conditions, admission=admission, **status)


def test_models_beside_the_job_are_part_of_what_is_asked_for():
    services = "services=[{name: my_judge, run: 'mine:app', workerGroup: {accelerator: {count: 3}}}]"
    (made,) = kueue().objects(make_context(TWO_GROUPS, services), 1)
    *_, judge = made["spec"]["podSets"]
    assert (judge["name"], judge["count"]) == ("service-my-judge", 1)
    template = judge["template"]
    assert template["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "3000m"
    assert "hostname" not in template["spec"] and template["metadata"]["labels"]["rljob.dev/service"] == "my_judge"


def test_a_ray_service_asks_for_its_head_and_a_pod_for_each_copy():
    judge = "{name: judge, run: 'rljob_worker.services:reward_model', options: {path: m}, workerGroup: {replicas: 3}}"
    (made,) = kueue().objects(make_context(f"services=[{judge}]", settings={"rayServices": True}), 1)
    result = {item["name"]: item for item in made["spec"]["podSets"][1:]}
    assert {name: item["count"] for name, item in result.items()} == {"service-judge--head": 1, "service-judge": 3}
    requests = [item["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] for item in result.values()]
    assert requests == ["500m", "1000m"]


def test_the_workload_asks_for_every_group_and_belongs_to_the_job():
    context = make_context(TWO_GROUPS, labels={"kueue.x-k8s.io/queue-name": "rl"})
    (made,) = kueue().objects(context, 1)
    assert made == kueue().objects(context, 5)[0], "quota follows the job, not its attempts"
    assert made["metadata"]["name"] == "rljob-small"
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID == made["metadata"]["labels"]["kueue.x-k8s.io/job-uid"]
    assert made["spec"]["queueName"] == "rl"
    assert [(item["name"], item["count"]) for item in made["spec"]["podSets"]] == [("train", 2), ("rollout", 4)]
    template = made["spec"]["podSets"][1]["template"]
    assert template["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1000m"
    assert "rljob.dev/attempt" not in template["metadata"]["labels"]


def test_a_queue_may_also_stand_in_the_spec():
    (made,) = kueue().objects(make_context("scheduling={provider: Kueue, queue: mine}"), 1)
    assert made["spec"]["queueName"] == "mine"


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (
            "v1beta2",
            {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}},
        ),
        (
            "v1beta1",
            {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass"},
        ),
    ],
)
def test_a_priority_is_named_as_the_version_wants_it(version, fields):
    gang = kueue(api_version=f"kueue.x-k8s.io/{version}", priority=QueuePriority("PriorityClass", "high", 1000))
    (made,) = gang.objects(make_context(), 1)
    assert made["spec"]["priority"] == 1000
    assert {name: made["spec"][name] for name in fields} == fields


def test_topology_is_asked_of_kueue():
    (made,) = kueue().objects(make_context(one_group(topology={"required": "rack"})), 1)
    request = made["spec"]["podSets"][0]["topologyRequest"]
    assert request == {"required": "rack", "podIndexLabel": "rljob.dev/host-index"}


@pytest.mark.parametrize(
    ("objects", "state", "words"),
    [
        ([], AdmissionState.WAITING, "no Workload"),
        ([workload()], AdmissionState.WAITING, "waiting for quota"),
        ([workload(condition("QuotaReserved", "False", message="no room"))], AdmissionState.WAITING, "no room"),
        ([admitted()], AdmissionState.ADMITTED, ""),
        ([admitted(), FLAVOR], AdmissionState.ADMITTED, ""),
        ([admitted(condition("Evicted", message="preempted by x")), FLAVOR], AdmissionState.EVICTED, "preempted by x"),
        ([workload(condition("Evicted"))], AdmissionState.WAITING, "waiting for quota"),
        ([workload(condition("Finished"))], AdmissionState.SPENT, "finished"),
    ],
)
def test_what_kueue_says_decides_whether_pods_are_made(objects, state, words):
    admission = kueue().admission(objects)
    assert admission.state is state and words in admission.message


def test_a_flavor_that_is_not_there_is_said():
    assert "cannot read ResourceFlavor spot" in kueue().admission([admitted()]).unplaceable
    assert kueue().admission([admitted(), FLAVOR]).unplaceable == ""


def test_admission_says_where_each_group_goes():
    checks = [{"name": "x", "podSetUpdates": [{"name": "train", "nodeSelector": {"slice": "1"}}]}]
    admission = kueue().admission([admitted(admissionChecks=checks), FLAVOR])
    assert kueue().references([admitted()]) == [
        ClusterObjectReference("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "spot")
    ]
    train, rollout = admission.placements["train"], admission.placements["rollout"]
    assert train.node_selector == {"pool": "spot", "slice": "1"} and rollout.node_selector == {"pool": "spot"}
    assert train.tolerations == ({"key": "spot", "operator": "Exists"},)
    rendered = pods(make_context(TWO_GROUPS), 1, placements=admission.placements)
    assert rendered[0]["spec"]["nodeSelector"] == train.node_selector
    assert rendered[0]["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "train"
    assert "schedulingGates" not in rendered[0]["spec"]


def test_an_admission_check_may_bring_tolerations_for_its_own_group():
    slice_of = {"key": "slice", "operator": "Exists"}
    checks = [{"name": "x", "podSetUpdates": [{"name": "train", "tolerations": [slice_of]}]}]
    admission = kueue().admission([admitted(admissionChecks=checks), FLAVOR])
    spot = FLAVOR["spec"]["tolerations"][0]
    assert (admission.placements["train"].tolerations, admission.placements["rollout"].tolerations) == (
        (spot, slice_of),
        (spot,),
    )


def test_a_job_with_quota_that_is_not_admitted_says_what_it_still_waits_for():
    live = workload(condition("QuotaReserved", message="has quota"), condition("Admitted", "False", message="checks"))
    assert kueue().admission([live]) == Admission(AdmissionState.WAITING, "checks")


def test_pods_that_kueue_places_itself_wait_behind_its_gate():
    live = admitted()
    live["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {"levels": ["rack"]}
    train = kueue().admission([live, FLAVOR]).placements["train"]
    assert train.scheduling_gates == ("kueue.x-k8s.io/topology",)
    assert train.annotations == {"kueue.x-k8s.io/workload": "rljob-small"}


def test_readiness_is_reported_once():
    (status,) = kueue().report([admitted()], READY)
    (result,) = status["status"]["conditions"]
    assert (result["type"], result["status"], result["reason"]) == ("PodsReady", "True", "Started")
    assert kueue().report([admitted(result)], READY) == []


def test_groups_that_end_early_give_their_quota_back_and_never_take_it_again():
    (status,) = kueue().report([admitted()], Readiness(True, {"train": 0, "rollout": 4}))
    assert status["status"]["reclaimablePods"] == [{"name": "rollout", "count": 4}]
    live = admitted(reclaimablePods=[{"name": "rollout", "count": 4}])
    (status,) = kueue().report([live], Readiness(False, {"train": 0, "rollout": 0}))
    assert status["status"]["reclaimablePods"] == [{"name": "rollout", "count": 4}]


def test_a_job_that_queues_again_wants_the_quota_of_all_its_pods():
    live = workload(condition("QuotaReserved", "False"), reclaimablePods=[{"name": "rollout", "count": 4}])
    (status,) = kueue().report([live], Readiness(False, {}))
    assert "reclaimablePods" not in status["status"]


@pytest.mark.parametrize(("reason", "requeued"), [("Preempted", "True"), ("PodsReadyTimeout", "False")])
def test_a_release_takes_the_admission_back_and_keeps_what_else_kueue_wrote(reason, requeued):
    live = admitted(condition("Evicted", reason=reason, message="why"), requeueState={"count": 1})
    (status,) = kueue().release([live])
    assert kueue().release_manager == "kueue-admission"
    assert status["metadata"]["resourceVersion"] == "7"
    assert "admission" not in status["status"] and status["status"]["requeueState"] == {"count": 1}
    result = {item["type"]: item["status"] for item in status["status"]["conditions"]}
    assert result == {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": requeued}
    live["status"] = status["status"]
    assert kueue().admission([live]).state is AdmissionState.WAITING
    assert kueue().release([live]) == []


@pytest.mark.parametrize("reason", ["Succeeded", "Failed"])
def test_a_finished_job_gives_its_quota_back_once_and_keeps_what_we_said_before(reason):
    live, message = admitted(condition("PodsReady")), f"the job has {reason.lower()}"
    (status,) = kueue().finish([live], message)
    result = {item["type"]: item for item in status["status"]["conditions"]}
    assert set(result) == {"PodsReady", "Finished"} and result["Finished"]["reason"] == reason
    live["status"]["conditions"] = status["status"]["conditions"]
    assert kueue().finish([live], message) == [] and kueue().report([live], READY) == []


@pytest.mark.parametrize("objects", [[], [FLAVOR]])
def test_without_a_workload_there_is_nothing_to_say(objects):
    gang = kueue()
    assert gang.report(objects, READY) == gang.release(objects) == gang.finish(objects, "") == []
    assert gang.admission(objects) == Admission(AdmissionState.WAITING, "Kueue has no Workload of the job yet")
