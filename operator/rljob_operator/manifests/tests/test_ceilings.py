import json

import pytest

from rljob_operator.manifests.ceilings import Ceilings, beyond
from rljob_operator.manifests.tests.builders import make_context, one_group, vendor_context


def job_of(**spec):
    """A CPU job whose pods' template has these fields in its spec."""
    return make_context(one_group(template={"spec": spec}), "podSecurity=Privileged")


def worker(**fields):
    return {"containers": [{"name": "worker", **fields}]}


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
    assert beyond(Ceilings.model_validate(ceiling), job_of(**template)) == [f"worker group train: {words}"]


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
    assert beyond(Ceilings.model_validate(ceiling), job_of(**template)) == []


def test_a_gang_has_one_priority():
    job = make_context("scheduling.priorityClassName=system-node-critical")
    found = beyond(Ceilings.model_validate({"priorityClasses": ["low"]}), job)
    assert found == ["worker group train: priority class system-node-critical: allowed are low (priorityClasses)"]


@pytest.mark.parametrize(("most", "is_admitted"), [(15, False), (16, True), (17, True)])
def test_accelerators_are_counted_over_all_pods(most, is_admitted):
    found = beyond(Ceilings(accelerators=most), vendor_context("nvidia"))  # two pods of 8
    assert found == ([] if is_admitted else ["16 accelerators, and a job may have 15 (accelerators)"])


def test_accelerators_of_templates_and_of_models_count_too():
    """Whoever asks for them, they are not there for others."""
    resources = {"limits": {"nvidia.com/gpu": 3, "example.com/nic": 9}}
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
    for settings, asked in ((None, 11), ({"rayServices": True}, 14)):
        context = make_context("data.batchSize=4", *overrides, settings=settings)
        assert beyond(Ceilings(accelerators=asked), context) == []
        words = f"{asked} accelerators, and a job may have {asked - 1} (accelerators)"
        assert beyond(Ceilings(accelerators=asked - 1), context) == [words]


def test_what_a_profile_needs_counts_like_what_a_job_asks_for():
    found = beyond(
        Ceilings.model_validate({"hostPaths": ["/usr/local/Ascend/driver/lib64"]}), vendor_context("ascend-910")
    )
    assert found and all("ascend-driver" in each or "hostPaths" in each for each in found)


def test_every_group_and_container_is_looked_at():
    groups = [
        {"name": "train", "replicas": 2, "template": {"spec": {"initContainers": [{"name": "mine", "image": "a:1"}]}}},
        {"name": "rollout", "template": {"spec": worker(image="b:1")}},
    ]
    found = beyond(Ceilings.model_validate({"images": ["rljob-"]}), make_context(f"workerGroups={json.dumps(groups)}"))
    assert found == [
        "worker group train: image a:1 of container mine: allowed are rljob- (images)",
        "worker group rollout: image b:1 of container worker: allowed are rljob- (images)",
    ]
