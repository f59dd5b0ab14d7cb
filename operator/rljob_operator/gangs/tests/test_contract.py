"""What every gang scheduler and queue keeps, whichever it is."""

from __future__ import annotations

import copy

import pytest

from rljob_operator.gangs.provider import GangProvider, Readiness
from rljob_operator.gangs.selection import GANGS
from rljob_operator.manifests import pods
from rljob_operator.manifests.metadata import is_child_of
from rljob_operator.manifests.tests.builders import TWO_GROUPS, UID, make_context
from rljob_operator.states.situation.facts import AdmissionState

QUEUES = {"Kueue"}
ALONE = {"None"}


@pytest.fixture(params=sorted(GANGS))
def gang(request: pytest.FixtureRequest) -> GangProvider:
    return GANGS[request.param]()


def test_objects_belong_to_the_job_and_are_of_a_version_that_is_asked_for(gang: GangProvider) -> None:
    context = make_context(TWO_GROUPS)
    made = gang.objects(context, 3)
    assert len(made) == (0 if gang.provider in ALONE else 1)
    for item in made:
        assert item["apiVersion"] in gang.api_versions
        assert is_child_of(item, UID) and item["metadata"]["labels"]["rljob.dev/job"] == "small"
        assert item["metadata"]["name"].startswith(("small-", "rljob-small")), "no other job's can be taken for it"
    assert gang.objects(context, 3) == made


def test_pods_keep_what_they_are_and_name_the_group_that_was_made(gang: GangProvider) -> None:
    context = make_context(TWO_GROUPS)
    before = pods(context, 3)[4]
    shaped = gang.shape(context, copy.deepcopy(before))
    for field in ("containers", "initContainers", "hostname", "volumes"):
        assert shaped["spec"][field] == before["spec"][field]
    assert shaped["metadata"]["labels"].items() >= before["metadata"]["labels"].items()
    if gang.is_queue or gang.provider in ALONE:
        assert shaped == before
    else:
        (group,) = gang.objects(context, 3)
        names = [*shaped["metadata"]["labels"].values(), *shaped["metadata"]["annotations"].values()]
        names.append(shaped["spec"].get("schedulingGroup", {}).get("podGroupName"))
        assert group["metadata"]["name"] in names


def test_only_a_queue_keeps_a_job_from_making_pods(gang: GangProvider) -> None:
    assert gang.is_queue == (gang.provider in QUEUES)
    assert gang.admission([]).state is (AdmissionState.WAITING if gang.is_queue else AdmissionState.ADMITTED)


def test_only_a_scheduler_of_gangs_is_waited_for_before_anything_is_placed(gang: GangProvider) -> None:
    assert gang.waits_for_all(()) == (gang.provider not in ALONE | QUEUES)


def test_without_objects_there_is_nothing_to_see_or_to_say(gang: GangProvider) -> None:
    readiness = Readiness(pods_ready=True, finished_pods={"train": 1})
    wanted = gang.objects(make_context(TWO_GROUPS), 1)
    assert gang.references([]) == [] and gang.renewed([], wanted) == []
    assert gang.report([], readiness) == gang.release([]) == gang.finish([], "the job has succeeded") == []


@pytest.mark.parametrize("name", sorted(GANGS))
def test_providers_are_called_as_a_job_calls_them(name: str) -> None:
    assert GANGS[name].provider == name
    assert make_context(f"scheduling.provider={name}").spec.scheduling.provider == name
