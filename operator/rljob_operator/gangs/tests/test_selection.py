"""Tests of choosing a gang provider."""

from dataclasses import replace

import pytest

from rljob_operator.gangs.selection import Unserved, select
from rljob_operator.manifests.ceilings import QueueCeilings
from rljob_operator.manifests.tests.builders import make_context, one_group

KUEUE, VOLCANO = "kueue.x-k8s.io/v1beta2", "scheduling.volcano.sh/v1beta1"
COSCHEDULING, NATIVE = "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"
EVERYTHING = {KUEUE, VOLCANO, COSCHEDULING, NATIVE}
QUEUE = {"kueue.x-k8s.io/queue-name": "rl"}


@pytest.mark.parametrize(
    ("served", "labels", "native", "provider"),
    [
        (set(), None, False, "None"),
        (EVERYTHING, QUEUE, False, "Kueue"),
        (EVERYTHING, None, True, "Native"),
        (EVERYTHING, None, False, "Volcano"),
        ({COSCHEDULING, KUEUE}, None, False, "Coscheduling"),
        ({KUEUE}, None, True, "None"),
    ],
)
def test_auto_takes_what_the_cluster_has(served, labels, native, provider):
    context = make_context(labels=labels, settings={"gang": {"native": native}})
    assert select(context, served).provider == provider


def test_auto_takes_what_the_accelerator_needs():
    context = make_context(one_group("ascend-910", 8))
    assert select(context, EVERYTHING).provider == "Volcano"
    with pytest.raises(Unserved, match=f"provider Volcano: the cluster does not serve {VOLCANO}; install Volcano"):
        select(context, set())


@pytest.mark.parametrize(
    ("train", "rollout", "provider"),
    [
        (["Coscheduling", "Volcano"], ["Volcano", "Coscheduling"], "Coscheduling"),
        (["Volcano", "Coscheduling"], ["Coscheduling", "Volcano"], "Volcano"),
        (["Volcano", "Coscheduling"], ["Coscheduling"], "Coscheduling"),
        (["Coscheduling"], [], "Coscheduling"),
    ],
)
def test_auto_takes_what_all_accelerators_need_as_the_first_of_them_wishes(train, rollout, provider):
    known = {"device": "cuda", "backend": "nccl"}
    profiles = {
        f"npu-{name}": {**known, "resource": f"example.com/{name}", "schedulers": needs}
        for name, needs in (("train", train), ("rollout", rollout))
    }
    groups = ", ".join(
        f"{{name: {name}, replicas: 1, accelerator: {{profile: npu-{name}, count: 1}}}}"
        for name in ("train", "rollout")
    )
    assert select(make_context(f"workerGroups=[{groups}]", profiles=profiles), EVERYTHING).provider == provider


def test_what_the_accelerator_does_not_work_with_is_refused():
    context = make_context(one_group("ascend-910", 8), "scheduling.provider=Coscheduling")
    with pytest.raises(Unserved, match="profile ascend-910 needs scheduling.provider Volcano, and the job gets Cosche"):
        select(context, EVERYTHING)


SERVICES = "services=[{name: judge, run: 'mine:app'}]"


@pytest.mark.parametrize("provider", ["Volcano", "Coscheduling", "Native"])
def test_a_gang_that_is_made_anew_with_every_attempt_has_no_place_for_models(provider):
    context = make_context(SERVICES, f"scheduling.provider={provider}", settings={"gang": {"native": True}})
    with pytest.raises(Unserved, match=f"spec.services: provider {provider} counts the pods of an attempt"):
        select(context, EVERYTHING)


@pytest.mark.parametrize(("labels", "provider"), [(None, "None"), (QUEUE, "Kueue")])
def test_auto_takes_for_a_job_with_models_what_counts_them(labels, provider):
    assert select(make_context(SERVICES, labels=labels), EVERYTHING).provider == provider


@pytest.mark.parametrize("provider", ["Kueue", "Volcano", "Coscheduling", "Native"])
def test_a_provider_that_is_not_served_is_refused(provider):
    with pytest.raises(Unserved, match=f"provider {provider}: the cluster does not serve"):
        select(make_context(f"scheduling.provider={provider}"), set())


def test_the_native_api_has_a_gate():
    context = make_context("scheduling.provider=Native")
    with pytest.raises(Unserved, match="pods.gang.native"):
        select(context, EVERYTHING)


@pytest.mark.parametrize(("served", "version"), [({KUEUE}, "v1beta2"), ({"kueue.x-k8s.io/v1beta1"}, "v1beta1")])
def test_kueue_is_spoken_to_in_the_version_it_serves(served, version):
    context = make_context("scheduling.provider=Kueue")
    (made,) = select(context, served).objects(context, 1)
    assert (made["apiVersion"], made["kind"]) == (f"kueue.x-k8s.io/{version}", "Workload")


def test_what_a_models_accelerator_needs_is_asked_for_too():
    """And what it needs counts pods of an attempt, of which a model has none."""
    models = "services=[{name: judge, run: 'mine:app', workerGroup: {accelerator: {profile: ascend-910, count: 4}}}]"
    with pytest.raises(Unserved, match="spec.services: provider Volcano counts the pods of an attempt"):
        select(make_context(models), EVERYTHING)
    with pytest.raises(Unserved, match="profile ascend-910 needs scheduling.provider Volcano, and the job gets Kueue"):
        select(make_context(models, labels=QUEUE), EVERYTHING)
    free = make_context(models, profiles={"ascend-910": {"schedulers": []}})
    assert select(free, EVERYTHING).provider == "None"


@pytest.mark.parametrize(
    ("queues", "overrides", "provider"),
    [
        ({"default": "main"}, (), "Kueue"),
        ({"required": True}, (), "Kueue"),
        ({"names": ["main"]}, (), "Volcano"),
        ({"default": "main"}, ("scheduling.provider=None",), "None"),
        ({"default": "main"}, (one_group("ascend-910", 8),), "Volcano"),  # which needs it
    ],
)
def test_a_queue_that_is_given_to_all_jobs_comes_after_what_accelerators_need(queues, overrides, provider):
    context = replace(make_context(*overrides), queues=QueueCeilings.model_validate(queues))
    assert select(context, EVERYTHING).provider == provider
