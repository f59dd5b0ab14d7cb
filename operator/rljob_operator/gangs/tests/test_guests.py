"""Pods of an elastic group are outside of the gang that a scheduler or a queue starts together."""

import json
from datetime import UTC, datetime

import pytest

from rljob_operator.gangs.kueue.gang import Kueue
from rljob_operator.gangs.pod_groups import Coscheduling, Native, Volcano
from rljob_operator.gangs.provider import Ungrouped
from rljob_operator.inspection.quotas import asked_for
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.pod.pods import guest_pod, pods
from rljob_operator.manifests.secrets import tls_secret
from rljob_operator.manifests.tests.builders import env_of, make_context, worker_of
from rljob_operator.manifests.violations.job import job_violations

GROUPS = "workerGroups=[{name: train, replicas: 2}, {name: rollout, elastic: {min: 1, max: 4}}]"
QUEUE, CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


def context(*overrides, groups=GROUPS, **more):
    return make_context(groups, "rollout.maxStaleness=1", *overrides, **more)


def test_a_gang_is_made_without_guests():
    made = pods(context(), 1)
    assert [pod["metadata"]["name"] for pod in made] == ["small-train-0-a1", "small-train-1-a1"]
    assert context().num_pods == 2


def test_a_guest_has_a_name_of_its_own_and_the_host_name_of_its_number():
    pod = guest_pod(context(), 3, attempt=2, start=5)
    assert pod["metadata"]["name"] == "small-rollout-3-a2-g5"
    assert (pod["spec"]["hostname"], pod["metadata"]["labels"]["rljob.dev/host-index"]) == ("small-rollout-3", "3")
    env = env_of(worker_of(pod))
    assert (env["RLJOB_GROUP"], env["RLJOB_HOST_INDEX"], env["RLJOB_ATTEMPT"]) == ("rollout", "3", "2")


def test_a_guest_waits_for_no_rank_table():
    group = {"name": "rollout", "accelerator": {"profile": "huawei-npu"}, "elastic": {"min": 1, "max": 2}}
    train = {"name": "train", "accelerator": {"profile": "huawei-npu"}}
    made = context(groups=f"workerGroups={json.dumps([train, group])}")
    assert any("RANK_TABLE" in name for name in env_of(worker_of(pods(made, 1)[0])))
    assert not any("RANK_TABLE" in name for name in env_of(worker_of(guest_pod(made, 0, 1, 1))))
    assert "rank-table" not in [volume["name"] for volume in guest_pod(made, 0, 1, 1)["spec"]["volumes"]]


def test_a_guest_avoids_nodes_that_failed():
    made = context()
    object.__setattr__(made, "avoided_nodes", ("bad",))
    (term,) = guest_pod(made, 0, 1, 1)["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]


def test_certificates_are_issued_for_every_guest_there_may_be():
    entries = tls_secret(context("dataBuffer.tls=true"), 1, datetime.now(UTC))["stringData"]
    assert {name for name in entries if name.endswith(".crt") and name.startswith("rollout")} == {
        f"rollout-{index}.crt" for index in range(4)
    }


def test_kueue_lets_the_gang_in_and_every_guest_by_itself():
    labels = {QUEUE: "rl", CLASS: "low"}
    made, gang = context(labels=labels), Kueue()
    (workload,) = gang.objects(made, 1)
    assert [(item["name"], item["count"]) for item in workload["spec"]["podSets"]] == [("train", 2)]
    guest = gang.shape_guest(made, guest_pod(made, 0, 1, 1))["metadata"]["labels"]
    assert (guest[QUEUE], guest[CLASS]) == ("rl", "low")
    assert QUEUE not in gang.shape(made, pods(made, 1)[0])["metadata"]["labels"]
    named = context("scheduling.provider=Kueue", "scheduling.queue=spot")
    assert Kueue().shape_guest(named, guest_pod(named, 0, 1, 1))["metadata"]["labels"][QUEUE] == "spot"


def test_a_group_of_volcano_has_the_gang_alone():
    made = context()
    (group,) = Volcano().objects(made, 1)
    assert (group["spec"]["minMember"], group["spec"]["minTaskMember"]) == (2, {"train": 2})
    guest = Volcano().shape_guest(made, guest_pod(made, 0, 1, 1))
    assert guest["spec"]["schedulerName"] == "volcano"
    assert not any("scheduling.k8s.io" in name for name in guest["metadata"]["annotations"])


@pytest.mark.parametrize("gang", [Ungrouped(), Coscheduling(), Native()])
def test_other_schedulers_see_an_ordinary_pod(gang):
    made = context()
    assert gang.shape_guest(made, guest_pod(made, 0, 1, 1)) == guest_pod(made, 0, 1, 1)


def test_quota_is_asked_for_the_gang_and_ceilings_for_all_that_there_may_be():
    # 2 pods of the gang
    assert asked_for(context())["pods"] == 2
    group = {"name": "rollout", "accelerator": {"profile": "nvidia"}, "elastic": {"min": 1, "max": 4}}
    made = context(groups=f"workerGroups={json.dumps([{'name': 'train'}, group])}")
    (message,) = job_violations(Ceilings(accelerators=3), made)
    assert message.startswith("4 accelerators")
