"""Tests of the ceilings of jobs and pods."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.manifests import pods
from rljob_operator.manifests.ceilings import Ceilings, QueueCeilings
from rljob_operator.manifests.context import QUEUE_LABEL
from rljob_operator.manifests.tests.builders import make_context, one_group, vendor_context
from rljob_operator.manifests.tests.hostile_templates import CLOSED, HOSTILE, secured, volume, worker
from rljob_operator.manifests.violations import job_violations
from rljob_operator.manifests.violations.job import devices
from rljob_operator.manifests.violations.pods import FIELDS, pod_violations


def job_of(**spec):
    """A CPU job whose pods' template has these fields in its spec."""
    return make_context(one_group(template={"spec": spec}), "podSecurity=Privileged")


PINNED_WORKER = worker(image="rljob-worker@sha256:" + "0f" * 32)
ETC = {"volumes": [{"name": "node", "hostPath": {"path": "/etc"}}]}


@pytest.mark.parametrize(
    ("ceiling", "template", "words"),
    [
        ({"podSecurity": "Baseline"}, {"hostPID": True}, "hostPID: true, which podSecurity: Baseline forbids"),
        (
            {"podSecurity": "Restricted"},
            worker(securityContext={"runAsUser": 0}),
            "container worker runs as root, which podSecurity: Restricted forbids",
        ),
        ({"hostNetwork": False}, {"hostNetwork": True}, "hostNetwork: true, which no pod may have (hostNetwork)"),
        (
            {"privileged": False},
            worker(securityContext={"privileged": True}),
            "container worker is privileged, which none may be (privileged)",
        ),
        ({"hostPaths": []}, ETC, "host path /etc of volume node: none is allowed (hostPaths)"),
        ({"hostPaths": ["/data/", "/et"]}, ETC, "host path /etc of volume node: allowed are /data/, /et (hostPaths)"),
        (
            {"images": ["registry.example/ml/", "rljob-"]},
            worker(image="elsewhere.example/x:1"),
            "image elsewhere.example/x:1 of container worker: allowed are registry.example/ml/, rljob- (images)",
        ),
        (
            {"imageDigests": True, "images": ["rljob-"]},
            PINNED_WORKER,
            "image rljob-databuffer:dev of container data-buffer is not named by digest, NAME@sha256:… (imageDigests)",
        ),
        (
            {"serviceAccounts": ["trainers"]},
            {"serviceAccountName": "admin"},
            "service account admin: allowed are trainers (serviceAccounts)",
        ),
        ({"serviceAccounts": ["trainers"]}, {}, "service account default: allowed are trainers (serviceAccounts)"),
    ],
)
def test_what_goes_beyond_is_named_with_what_is_allowed(ceiling, template, words):
    assert job_violations(Ceilings.model_validate(ceiling), job_of(**template)) == [f"worker group train: {words}"]


@pytest.mark.parametrize(
    ("ceiling", "template"),
    [
        ({}, {**ETC, "hostNetwork": True, "hostPID": True}),
        ({"podSecurity": "Restricted", "hostNetwork": False, "privileged": False, "hostPaths": []}, {}),
        ({"hostPaths": ["/etc"]}, ETC),
        ({"hostPaths": ["/"]}, ETC),
        ({"images": ["rljob-"], "serviceAccounts": ["default"], "priorityClasses": []}, {}),
        ({"accelerators": 0}, {}),
    ],
)
def test_what_stays_below_is_admitted(ceiling, template):
    assert job_violations(Ceilings.model_validate(ceiling), job_of(**template)) == []


def test_a_gang_has_one_priority():
    job = make_context("scheduling.priorityClassName=system-node-critical")
    result = job_violations(Ceilings.model_validate({"priorityClasses": ["low"]}), job)
    assert result == ["worker group train: priority class system-node-critical: allowed are low (priorityClasses)"]


@pytest.mark.parametrize(("most", "is_admitted"), [(15, False), (16, True), (17, True)])
def test_accelerators_are_counted_over_all_pods(most, is_admitted):
    result = job_violations(Ceilings(accelerators=most), vendor_context("nvidia"))  # two pods of 8
    assert result == (
        [] if is_admitted else ["16 accelerators (16 nvidia.com/gpu), and a job may have 15 (accelerators)"]
    )


def test_accelerators_of_templates_and_of_models_count_too():
    """Whoever asks for them, they are not there for others."""
    resources = {"limits": {"nvidia.com/gpu": 3, "rdma/hca": 9}}
    one = {"image": "a:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    helpers = [{"name": "mine", "restartPolicy": "Always", **one}, {"name": "before", **one}]
    template = {"spec": {"containers": [{"name": "worker", "resources": resources}], "initContainers": helpers}}
    models = [
        {
            "name": "judge",
            "run": "rljob_worker.services:reward_model",
            "options": {"path": "m"},
            "workerGroup": {
                "replicas": 2,
                "template": {"spec": {"containers": [{"name": "service", "resources": resources}]}},
            },
        }
    ]
    overrides = ("podSecurity=Privileged", one_group(replicas=2, template=template), f"services={json.dumps(models)}")
    # two pods of 3 + 1, and a pod with 3 for both copies; as RayServices, a pod with 3 for each copy
    for used, asked in ((None, 11), ({"rayServices": True}, 14)):
        context = make_context("data.batchSize=4", *overrides, settings=used)
        assert job_violations(Ceilings(accelerators=asked), context) == []
        words = f"{asked} accelerators ({asked} nvidia.com/gpu), and a job may have {asked - 1} (accelerators)"
        assert job_violations(Ceilings(accelerators=asked - 1), context) == [words]


def test_what_a_profile_needs_counts_like_what_a_job_asks_for():
    result = job_violations(
        Ceilings.model_validate({"hostPaths": ["/usr/local/Ascend/driver/lib64"]}), vendor_context("ascend-910")
    )
    assert result and all("ascend-driver" in item or "hostPaths" in item for item in result)


def test_every_group_and_container_is_looked_at():
    groups = [
        {"name": "train", "replicas": 2, "template": {"spec": {"initContainers": [{"name": "mine", "image": "a:1"}]}}},
        {"name": "rollout", "template": {"spec": worker(image="b:1")}},
    ]
    result = job_violations(
        Ceilings.model_validate({"images": ["rljob-"]}), make_context(f"workerGroups={json.dumps(groups)}")
    )
    assert result == [
        "worker group train: image a:1 of container mine: allowed are rljob- (images)",
        "worker group rollout: image b:1 of container worker: allowed are rljob- (images)",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_reaches_beyond_its_pod_is_refused(name):
    case = HOSTILE[name]
    context = make_context(one_group(template=case.template), "podSecurity=Privileged")
    result = job_violations(Ceilings.model_validate(case.ceilings), context)
    assert result and all(case.ceiling in item for item in result)
    assert job_violations(Ceilings(), context) == []


def test_an_ordinary_job_stays_below_every_ceiling():
    overrides = ("dataBuffer.tls=true", "storage={persistentVolumeClaim: data}")
    assert job_violations(Ceilings.model_validate(CLOSED), make_context(*overrides)) == []


@pytest.mark.parametrize(
    ("ceiling", "template", "words"),
    [
        ({"hostPaths": ["/data"]}, volume(hostPath={"path": "/data/../etc"}), "host path /data/../etc of volume mine"),
        ({"hostNetwork": False}, volume(nfs={"server": "a", "path": "/"}), "field volumes.nfs of volume mine"),
        ({"images": ["rljob-"]}, {"hostnameOverride": "a"}, "field hostnameOverride of the pod"),
        ({"accelerators": 0}, worker(stdin=True), "field containers.stdin of container worker"),
        ({"accelerators": 0}, secured(newOption=1), "field containers.securityContext.newOption of container worker"),
        ({"secrets": ["a"]}, worker(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}}]),
         "Secret b in container worker: allowed are a (secrets)"),
        ({"secrets": []}, volume(secret={"secretName": "small-token-2"}), "Secret small-token-2 in volume mine"),
        ({"secrets": []}, volume(secret={"secretName": "small-tls-a1-ca"}), "Secret small-tls-a1-ca in volume mine"),
        ({"secrets": []}, volume(csi={"nodePublishSecretRef": {"name": "a"}}), "Secret a in volume mine"),
        ({"secrets": []}, volume(rbd={"secretRef": {"name": "a"}}), "Secret a in volume mine"),
        ({"tolerations": ["gpu"]}, {"tolerations": [{"key": "a"}]}, "toleration of a: allowed are gpu (tolerations)"),
        ({"imageDigests": True}, volume(image={"reference": "a:1"}), "image a:1 of volume mine is not named by digest"),
    ],
)  # fmt: skip
def test_what_else_goes_beyond_a_ceiling(ceiling, template, words):
    result = job_violations(Ceilings.model_validate(ceiling), job_of(**template))
    assert any(words in item for item in result)


@pytest.mark.parametrize(
    ("ceiling", "template"),
    [
        ({"secrets": ["prod-db"]}, volume(secret={"secretName": "prod-db"})),
        ({"secrets": []}, volume(secret={"secretName": "small-tls-a12"})),
        ({"tolerations": ["gpu"]}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
        ({"runtimeClasses": ["kata"]}, {"runtimeClassName": "kata"}),
        ({"schedulers": ["mine"]}, {"schedulerName": "mine"}),
        ({"schedulers": []}, {"schedulerName": "default-scheduler"}),
        ({"hostNetwork": False, "extraFields": ["nodeName", "volumes.nfs"]}, {"nodeName": "a", **volume(nfs={})}),
        ({"accelerators": 1}, worker(resources={"limits": {"vendor.example/npu": 1, "rdma/hca": 8}})),
        ({"accelerators": 0, "notAccelerators": ["a.b/c"]}, worker(resources={"limits": {"a.b/c": 9}})),
    ],
)
def test_what_an_administrator_lists_is_admitted(ceiling, template):
    assert job_violations(Ceilings.model_validate(ceiling), job_of(**template)) == []


def test_a_queue_alone_is_no_ceiling_over_pods():
    rules = Ceilings.model_validate({"queues": {"default": "main"}, "extraFields": ["x"], "notAccelerators": []})
    assert job_violations(rules, job_of(nodeName="a", hostPID=True)) == []


@pytest.mark.parametrize(
    ("queues", "scheduling", "labels", "result"),
    [
        ({}, {}, {}, []),
        ({"required": True, "default": "main"}, {}, {}, []),
        ({"required": True, "default": "main"}, {"provider": "Kueue"}, {}, []),
        ({"required": True}, {}, {QUEUE_LABEL: "mine"}, []),
        ({"required": True}, {}, {}, ["no queue, and every job waits in one: name it in the label"]),
        ({"required": True, "default": "main"}, {"provider": "None"}, {QUEUE_LABEL: "mine"}, ["provider None"]),
        ({"names": ["batch"], "default": "main"}, {}, {QUEUE_LABEL: "batch"}, []),
        ({"names": ["batch"], "default": "main"}, {}, {}, []),
        ({"names": ["batch"]}, {}, {QUEUE_LABEL: "prod"}, ["queue prod: allowed are batch (queues.names)"]),
        ({"names": []}, {"provider": "Kueue", "queue": "prod"}, {}, ["queue prod: none is allowed (queues.names)"]),
        ({"names": ["batch"]}, {"provider": "Volcano", "queue": "prod"}, {}, []),
    ],
)
def test_which_queues_jobs_wait_in(queues, scheduling, labels, result):
    rules = QueueCeilings.model_validate(queues)
    context = replace(make_context(f"scheduling={json.dumps(scheduling)}", labels=labels), queues=rules)
    said = job_violations(Ceilings(queues=rules), context)
    assert len(said) == len(result) and all(words in item for words, item in zip(result, said, strict=True))


NAMES = sorted({name for names in FIELDS.values() for name in names} | {"a", "sources", "secretRef", "limits", "type"})
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "Always", "Unconfined", "/etc", "1e99", "a/b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(FIELDS[""]), ANYTHING, max_size=6))
@settings(max_examples=50)
def test_whatever_a_template_says_it_is_judged(spec):
    """The API server refuses what has the shape of no pod; until then it must not stop the operator."""
    context = make_context()
    (pod,) = pods(context, 1)
    ceilings = Ceilings.model_validate(CLOSED)
    assert all(
        isinstance(pod_violation, str)
        for pod_violation in pod_violations(ceilings, context, {**pod, "spec": {**pod["spec"], **spec}})
    )


def one(count, *, always=False, name="nvidia.com/gpu", kind="limits"):
    sidecar = {"restartPolicy": "Always"} if always else {}
    return {"name": "c", "resources": {kind: {name: count}}, **sidecar}


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([], [one(2), one("3")], 5),  # they run together
        ([one(4), one(7)], [one(2)], 7),  # one after the other, before the two
        ([one(1, always=True), one(7)], [one(2)], 8),  # a sidecar runs beside what starts after it
        ([one(7), one(1, always=True)], [one(2)], 7),  # max(7, 1 + 2)
        ([one(2, always=True), one(1), one(3, always=True)], [one(4)], 9),  # 2 + 3 + 4 > 2 + 1
        ([], [one(1, kind="requests")], 1),
        ([], [one("2e1"), one("1k")], 1020),
        ([], [one("-5"), one(2)], 2),
        ([], [one(1, name="cpu"), one(2, name="hugepages-2Mi"), one(3, name="pod.kubernetes.io/x")], 0),
    ],
)
def test_devices_are_counted_as_the_scheduler_does(init, main, expected):
    assert sum(devices({"initContainers": init, "containers": main}, (), ()).values()) == expected


def test_each_resource_counts_by_itself():
    spec = {"initContainers": [one(4, name="a.b/x")], "containers": [one(2, name="c.d/y")], "resources": {}}
    assert devices(spec, (), ()) == {"a.b/x": 4, "c.d/y": 2}


def test_a_pod_may_ask_as_a_whole():
    assert devices({"containers": [one(2)], "resources": one(3)["resources"]}, (), ()) == {"nvidia.com/gpu": 3}


def test_less_than_nothing_is_nothing():
    asked = {"limits": {"nvidia.com/gpu": "-5"}, "requests": {"nvidia.com/gpu": "-5"}}
    assert devices({"containers": [{"name": "c", "resources": asked}, one(2)]}, (), ()) == {"nvidia.com/gpu": 2}


def test_some_resources_are_no_accelerators():
    spec = {"containers": [one(8, name="rdma/hca"), one(1, name="a.b/c"), one(2, name="gpu")]}
    assert devices(spec, {"gpu"}, ("rdma/", "a.b/c")) == {"gpu": 2}
