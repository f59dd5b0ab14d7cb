"""Pods of an elastic group, from their making to the end of the job, in a cluster of fakes."""

import pytest

from rljob_operator.cluster.errors import QuotaExceeded
from rljob_operator.cluster.kinds import EVENT, POD
from rljob_operator.states.situation.conditions import condition
from rljob_operator.tests.world import KEY, World, ended

GROUPS = [{"name": "train"}, {"name": "rollout", "elastic": {"min": 1, "max": 4}}]
ELASTIC = {"workerGroups": GROUPS, "rollout": {"maxResponseTokens": 32, "maxStaleness": 1}, "generators": 2}


def names(world):
    return [pod["metadata"]["name"] for pod in world.pods]


def guests(world):
    return [name for name in names(world) if "-rollout-" in name]


def generators(world):
    result = condition(world.status.conditions, "GeneratorsReady")
    return result.status, result.reason


def running(**spec):
    world = World()
    world.submit(**ELASTIC, **spec)
    world.settle()
    assert names(world) == ["small-train-0-a1"]  # guests take no place before the gang has its own
    world.run_pods()
    world.settle()
    world.run_pods()
    world.settle()
    return world


def pod_of(world, name):
    return world.cluster.peek(POD, KEY.namespace, name)


def test_guests_are_made_after_the_gang_and_are_pods_of_the_job_like_its_own():
    world = running()
    assert names(world) == ["small-rollout-0-a1-g1", "small-rollout-1-a1-g1", "small-train-0-a1"]
    assert (world.status.phase, world.status.ready, world.status.generators) == ("Running", "1/1", 2)
    assert generators(world) == ("True", "AllGeneratorsReady")
    pod = pod_of(world, "small-rollout-1-a1-g1")
    assert pod["spec"]["hostname"] == "small-rollout-1"
    (worker,) = pod["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in worker["env"]}
    assert (env["RLJOB_GROUP"], env["RLJOB_HOST_INDEX"], env["RLJOB_ATTEMPT"]) == ("rollout", "1", "1")


def test_a_guest_that_is_killed_is_replaced_and_nothing_else_happens():
    world = running()
    world.set_pod(pod_of(world, "small-rollout-0-a1-g1"), ended(137, "killed"))
    world.settle()
    assert world.status.phase == "Running" and world.status.restarts == 0
    world.wait(3)
    assert names(world) == ["small-rollout-0-a1-g2", "small-rollout-1-a1-g1", "small-train-0-a1"]
    assert generators(world) == ("False", "GeneratorsLost")
    world.run_pods()
    world.settle()
    assert generators(world) == ("True", "AllGeneratorsReady")
    assert (world.status.generators_lost, world.status.attempt) == (1, 1)


def test_guests_that_come_after_an_upgrade_of_the_operator_have_the_images_of_their_attempt():
    world = running()
    before = images(pod_of(world, "small-rollout-0-a1-g1"))
    (trainer,) = [pod for pod in world.pods if pod["metadata"]["name"] == "small-train-0-a1"]
    for container, image in zip(containers(trainer), ("buffer:old", "worker:old"), strict=True):
        container["image"] = image
    trainer["metadata"]["annotations"]["rljob.dev/generator-image"] = "generator:old"
    world.cluster.edit(POD, KEY.namespace, "small-train-0-a1", metadata=trainer["metadata"], spec=trainer["spec"])
    world.set_pod(pod_of(world, "small-rollout-0-a1-g1"), ended(137, "killed"))
    world.settle()
    world.wait(3)
    assert images(pod_of(world, "small-rollout-0-a1-g2")) == ["buffer:old", "generator:old"] != before


def containers(pod):
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def images(pod):
    return [container["image"] for container in containers(pod)]


def test_kubectl_scale_makes_and_removes_pods():
    world = running()
    world.edit(generators=4)
    world.settle()
    assert len(guests(world)) == 4
    world.run_pods()
    world.settle()
    world.edit(generators=1)
    world.settle()
    world.wait(601)
    assert guests(world) == ["small-rollout-0-a1-g1"]
    assert (world.status.generators, world.status.generators_wanted, world.status.generators_lost) == (1, 1, 0)
    world.edit(generators=2)
    world.settle()
    assert guests(world) == ["small-rollout-0-a1-g1", "small-rollout-1-a1-g1"]


def test_a_gang_that_restarts_begins_with_new_guests():
    world = running()
    world.set_pod(pod_of(world, "small-train-0-a1"), ended(75, "lost"))
    world.settle()
    world.wait(5)
    world.wait(30)
    assert names(world) == ["small-train-0-a2"]
    world.run_pods()
    world.settle()
    assert guests(world) == ["small-rollout-0-a2-g1", "small-rollout-1-a2-g1"]
    assert world.status.generators_lost == 0


def test_a_job_is_suspended_and_resumed_with_its_guests():
    world = running()
    world.edit(suspend=True)
    world.settle()
    assert len(guests(world)) == 2, "the step before the checkpoint needs rows"
    world.wait(601)
    world.wait(3)
    assert names(world) == [] and world.status.phase == "Suspended"
    assert generators(world) == ("False", "GeneratorsStopped")
    world.edit(suspend=False)
    world.settle()
    world.run_pods()
    world.settle()
    assert guests(world) == ["small-rollout-0-a2-g1", "small-rollout-1-a2-g1"]


def test_bad_data_that_a_guest_meets_ends_the_job():
    world = running()
    world.set_pod(pod_of(world, "small-rollout-1-a1-g1"), ended(65, "prompt 3 is no text"))
    world.settle()
    assert world.status.phase == "Failed"
    assert condition(world.status.conditions, "Failed").reason == "BadData"


def test_an_operator_that_begins_anew_goes_on_with_the_guests_that_there_are():
    world = running()
    world.set_pod(pod_of(world, "small-rollout-0-a1-g1"), ended(137, "killed"))
    world.settle()
    world.restart_operator()
    world.wait(3)
    assert guests(world) == ["small-rollout-0-a1-g2", "small-rollout-1-a1-g1"]
    assert world.status.generators_lost == 1


def test_events_say_what_became_of_guests():
    world = running()
    world.set_pod(pod_of(world, "small-rollout-0-a1-g1"), ended(137, "killed"))
    world.settle()
    world.edit(generators=3)
    world.settle()
    events = {event["reason"]: event["message"] for event in world.cluster.all(EVENT, KEY.namespace)}
    assert events["GeneratorsReady"] == "2 of 2 are ready"
    assert events["GeneratorLost"].startswith("generator 0: it ended on node node1 with exit code 137")
    assert events["GeneratorsScaled"] == "from 2 to 3"


def refuse_guests(verb, kind, name):
    """A ResourceQuota without room for pods of the elastic group."""
    is_guest = verb == "create" and kind is POD and "-rollout-" in name
    return QuotaExceeded(verb, kind, KEY.namespace, "exceeded quota: gpus") if is_guest else None


def test_a_quota_that_leaves_no_room_for_a_guest_is_no_trouble_of_the_gang():
    world = World()
    world.submit(**ELASTIC)
    world.settle()
    world.cluster.refuse = refuse_guests
    world.run_pods()
    world.settle()
    world.wait(1)
    assert world.status.phase == "Running" and guests(world) == []
    assert condition(world.status.conditions, "Degraded").status == "False"
    assert generators(world) == ("False", "NoGenerators")
    message = condition(world.status.conditions, "GeneratorsReady").message
    assert "no other can be made" in message and "exceeded quota: gpus" in message
    world.cluster.refuse = lambda verb, kind, name: None
    world.wait(20)
    assert len(guests(world)) == 2


def test_a_node_on_which_guests_are_killed_twice_is_avoided_by_the_next():
    world = running()
    for start in (1, 2):
        world.set_pod(pod_of(world, f"small-rollout-0-a1-g{start}"), ended(137, "killed"))
        world.settle()
        world.wait(3)
        world.run_pods()
        world.settle()
    first, third = (pod_of(world, name)["spec"] for name in ("small-rollout-1-a1-g1", "small-rollout-0-a1-g3"))
    (term,) = third["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"][0]["values"] == ["node1"] and "affinity" not in first


@pytest.mark.parametrize(("asked", "there"), [(9, 4), (0, 1)])
def test_a_number_out_of_the_bounds_that_nobody_refused_comes_as_near_as_may_be(asked, there):
    world = running()
    world.edit(generators=asked)
    world.settle()
    world.wait(601)
    assert len(guests(world)) == there
    degraded = condition(world.status.conditions, "Degraded")
    assert degraded.reason == "SpecChanged" and "spec.generators" in degraded.message
