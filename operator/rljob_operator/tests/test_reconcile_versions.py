"""An operator that takes over what one of another version began."""

import hashlib
import json

import pytest

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.cluster.kinds import CONFIG_MAP, POD, RLJOB
from rljob_operator.tests.world import KEY, TWO_PODS, World


@pytest.fixture
def world() -> World:
    return World()


def write_plan_as_another_version(world: World) -> str:
    """The plan that runs, without a field of this version's and with two that it does not know; its name."""
    known = world.cluster.peek(CONFIG_MAP, KEY.namespace, str(world.status.plan_config_map))
    assert known is not None
    plan = json.loads(known["data"]["plan.json"])
    del plan["memory"]
    plan["somethingNew"] = {"on": True}
    plan["spec"]["training"]["somethingNew"] = 1
    text = json.dumps(plan, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = names.plan_config_map_name(KEY.name, digest)
    world.cluster.remove(CONFIG_MAP, known)
    kept = {key: known["metadata"][key] for key in ("labels", "ownerReferences")}
    body = {"metadata": {"name": name, **kept}, "immutable": True, "data": {"plan.json": text}}
    world.cluster.put(CONFIG_MAP, KEY.namespace, body)
    status = {**world.job["status"], "planHash": digest, "planConfigMap": name}
    world.cluster.edit(RLJOB, KEY.namespace, KEY.name, status=status)
    world.restart_operator()
    return name


def plans(world: World) -> list[str]:
    return [item["metadata"]["name"] for item in world.cluster.all(CONFIG_MAP, KEY.namespace)]


def test_attempt_that_runs_keeps_the_plan_of_the_version_that_began_it(world: World) -> None:
    world.to_running()
    name, pods = write_plan_as_another_version(world), world.pods
    world.wait(60)
    world.wait(60)
    assert plans(world) == [name]
    assert (world.status.attempt, world.pods, world.reason("Degraded")[0]) == (1, pods, "False")
    assert world.status.plan_config_map == name


def test_plan_of_another_version_is_made_again_as_it_was(world: World) -> None:
    """It was deleted by hand; its pods would not start without the very text that they were named after."""
    world.to_running()
    name = write_plan_as_another_version(world)
    written = world.cluster.peek(CONFIG_MAP, KEY.namespace, name)
    assert written is not None
    world.wait(60)
    world.cluster.remove(CONFIG_MAP, written)
    world.wait(60)
    again = world.cluster.peek(CONFIG_MAP, KEY.namespace, name)
    assert again is not None and again["data"] == written["data"]


def test_gang_that_another_version_began_to_make_is_made_with_one_plan(world: World) -> None:
    world.submit(**TWO_PODS)
    world.reconcile()
    name = write_plan_as_another_version(world)
    world.cluster.remove(POD, world.pods[1])
    world.settle()
    made = world.pods[1]
    assert made["metadata"]["annotations"][keys.ANNOTATION_PLAN_HASH] == world.status.plan_hash
    assert name in [(item.get("configMap") or {}).get("name") for item in made["spec"]["volumes"]]
    assert plans(world) == [name] and world.status.attempt == 1


def test_next_attempt_has_a_plan_of_this_version_and_the_old_one_goes(world: World) -> None:
    world.to_running()
    name = write_plan_as_another_version(world)
    world.end_worker(0, 75)
    world.wait(3)
    world.wait(3)
    assert world.status.attempt == 2
    (plan,) = plans(world)
    assert plan == world.status.plan_config_map != name
    text = world.cluster.all(CONFIG_MAP, KEY.namespace)[0]["data"]["plan.json"]
    assert "somethingNew" not in text and '"memory"' in text
