"""Agents beside a job, on a fake cluster: they come with its gang, and go with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import DEPLOYMENT, POD, WORKLOAD_KUEUE
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.fake_queue import FakeQueue, let_in, take_back
from rljob_operator.tests.world import KEY, SPEC, World
from rljob_operator.vocabulary.timestamps import timestamp

TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "agent", "image": "registry.example/agent:1"}]}}
CONVERSATION: dict[str, Any] = {
    "endpoint": {"port": 9410, "listen": "Pods"},
    "agentPool": {"workerGroup": {"replicas": 2, "template": TEMPLATE}},
}
AGENTS: dict[str, Any] = {
    "rollout": {**SPEC["rollout"], "conversation": CONVERSATION},
    "dataBuffer": {"tls": True},
}


def deployments(world: World) -> list[Object]:
    return world.cluster.all(DEPLOYMENT, KEY.namespace)


def workload(world: World) -> Object:
    result = world.cluster.peek(WORKLOAD_KUEUE, KEY.namespace, "rljob-small")
    assert result is not None
    return result


def authority(deployment: Object) -> str:
    (tls,) = [item for item in deployment["spec"]["template"]["spec"]["volumes"] if item["name"] == "tls"]
    return str(tls["secret"]["secretName"])


@pytest.fixture
def world() -> World:
    return World()


def test_agents_come_after_the_gang_and_are_made_again_where_somebody_deletes_them(world: World) -> None:
    world.submit(**AGENTS)
    world.reconcile()
    made = [kind for _, kind, _ in world.cluster.done if kind != "Event"]
    assert made[-2:] == ["Pod", "Deployment"]
    world.settle()
    world.run_pods()
    world.settle()
    (first,) = deployments(world)
    assert (first["spec"]["replicas"], authority(first)) == (2, "small-tls-a1")
    world.cluster.remove(DEPLOYMENT, first)
    world.settle()
    (second,) = deployments(world)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert authority(second) == "small-tls-a1" and world.status.attempt == 1


def test_agents_that_the_server_writes_in_other_words_and_somebody_scales_stay(world: World) -> None:
    world.to_running(**AGENTS)
    (first,) = deployments(world)
    template = json.loads(json.dumps(first["spec"]["template"]).replace('"memory": "1Gi"', '"memory": "1073741824"'))
    world.cluster.edit(
        DEPLOYMENT, KEY.namespace, "small-agents", spec={**first["spec"], "template": template, "replicas": 9}
    )
    world.settle()
    world.cluster.done.clear()
    world.wait(60)
    (after,) = deployments(world)
    assert (after["spec"]["replicas"], after["spec"]["template"]) == (9, template)
    assert not [kind for _, kind, _ in world.cluster.done if kind == "Deployment"]


def test_agents_stay_while_the_gang_restarts_and_then_trust_its_new_authority(world: World) -> None:
    world.to_running(**AGENTS)
    (before,) = deployments(world)
    world.end_worker(0, 1, "RuntimeError: out of memory")
    assert len(deployments(world)) == 1
    for _ in range(6):
        world.wait(30)
    (after,) = deployments(world)
    assert (world.status.attempt, names(world.pods)) == (2, ["small-train-0-a2"])
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and authority(after) == "small-tls-a2"


def test_agents_go_with_a_job_that_is_suspended_and_come_back(world: World) -> None:
    world.to_running(**AGENTS)
    world.edit(suspend=True)
    for _ in range(6):
        world.wait(60)
    assert (world.status.phase, deployments(world)) == ("Suspended", [])
    world.edit(suspend=False)
    world.settle()
    assert authority(deployments(world)[0]) == "small-tls-a2"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (64, "Failed")])
def test_agents_go_when_the_job_has_ended(world: World, code: int, phase: str) -> None:
    world.to_running(**AGENTS)
    world.end_worker(0, code, "InvalidJob: no" if code else "")
    world.wait(5)
    assert (world.status.phase, deployments(world)) == (phase, [])


def test_agents_wait_for_the_queue_with_their_job_and_leave_with_it() -> None:
    queue = FakeQueue()
    world = World(select=lambda context: queue)
    world.submit(**AGENTS)
    world.settle()
    assert deployments(world) == [] and world.pods == []
    let_in(world.cluster, workload(world))
    world.settle()
    assert len(deployments(world)) == 1 and len(world.pods) == 1
    world.run_pods()
    world.settle()
    take_back(world.cluster, workload(world))
    world.settle()
    for _ in range(6):
        world.wait(60)
    assert deployments(world) == [] and world.pods == []


def test_a_deployment_of_somebody_else_stays_and_is_named(world: World) -> None:
    foreign = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "small-agents"}, "spec": {}}
    world.cluster.put(DEPLOYMENT, KEY.namespace, foreign)
    world.submit(**AGENTS)
    world.settle()
    assert any("small-agents" in item.message for item in world.status.conditions), world.status
    world.edit(suspend=True)
    for _ in range(6):
        world.wait(60)
    assert deployments(world)[0]["spec"] == {}


IMAGE = {"reason": "ImagePullBackOff", "message": "not found"}
NO_NODE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: cpu"}]
QUOTA = 'pods "small-agents-1" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=9, limited: cpu=10'


def report(world: World, ready: int, *conditions: Object) -> None:
    """What the Deployment's controller says."""
    status = {"readyReplicas": ready, "conditions": list(conditions)}
    world.cluster.edit(DEPLOYMENT, KEY.namespace, "small-agents", status=status)


def put_agent(world: World, owner: str = "small-agents-5d8f", **status: Any) -> None:
    """A pod of the Deployment's ReplicaSet; the one that was there goes."""
    labels = {"rljob.dev/agents-of": "small", "pod-template-hash": "5d8f"}
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "r", "controller": True}]
    metadata = {"name": "small-agents-1", "labels": labels, "ownerReferences": owners}
    world.cluster.put(POD, KEY.namespace, {"metadata": metadata, "spec": {}, "status": status})


def agent_container(restarts: int = 0, last: Object | None = None, **state: Any) -> list[Object]:
    container = {"name": "agent", "image": "registry.example/agent:1", "restartCount": restarts, "state": state}
    return [container | ({} if last is None else {"lastState": {"terminated": last}})]


def crashed(world: World) -> Object:
    return {"exitCode": 3, "reason": "Error", "message": "no model", "finishedAt": timestamp(world.clock())}


def test_the_job_says_how_many_agents_are_ready(world: World) -> None:
    world.to_running(**AGENTS)
    assert world.reason("AgentsReady") == ("False", "AgentsStarting")
    report(world, 1)
    assert world.reconcile() is not None
    assert world.condition("AgentsReady").message == "1 of 2 pods of agents are ready"
    report(world, 2)
    world.wait(15)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")
    world.edit(suspend=True)
    for _ in range(6):
        world.wait(60)
    assert world.reason("AgentsReady") == ("False", "AgentsStopped")


def test_an_image_of_agents_that_cannot_be_pulled_is_told_with_its_pod(world: World) -> None:
    world.to_running(**AGENTS)
    put_agent(world, containerStatuses=agent_container(waiting=IMAGE))
    world.wait(15)
    said = world.condition("AgentsReady")
    assert (said.status, said.reason) == ("False", "AgentsFailed")
    for word in ("0 of 2", "pod small-agents-1, container agent", "ImagePullBackOff", "registry.example/agent:1"):
        assert word in said.message
    assert world.cluster.events("AgentsFailed")
    world.wait(1200)  # a pod of the gang would have ended the job by now
    assert world.status.phase == "Running" and world.reason("Degraded")[0] == "False"


def test_agents_that_end_again_and_again_are_told_also_while_they_run_in_between(world: World) -> None:
    world.to_running(**AGENTS)
    last = crashed(world)
    report(world, 1)
    put_agent(world, containerStatuses=agent_container(2, last, waiting={"reason": "CrashLoopBackOff"}))
    world.wait(15)
    said = world.condition("AgentsReady")
    assert said.reason == "AgentsFailed"
    assert "small-agents-1, container agent, was started again 2 times; it ended with exit code 3" in said.message
    assert said.message.endswith("no model")
    report(world, 2)
    put_agent(world, containerStatuses=agent_container(3, last, running={}))
    world.wait(15)
    assert world.reason("AgentsReady") == ("False", "AgentsFailed")
    world.wait(600)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")


def test_an_agent_that_ended_once_is_no_news(world: World) -> None:
    world.to_running(**AGENTS)
    report(world, 2)
    put_agent(world, containerStatuses=agent_container(1, crashed(world), running={}))
    world.wait(15)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")


def test_agents_without_a_node_and_late_ones_are_told(world: World) -> None:
    world.to_running(**AGENTS)
    late = {
        "type": "Progressing",
        "status": "False",
        "message": 'ReplicaSet "small-agents-5" has timed out progressing.',
    }
    report(world, 0, late)
    world.wait(15)
    assert world.reason("AgentsReady") == ("False", "AgentsFailed")
    assert "timed out progressing" in world.condition("AgentsReady").message
    put_agent(world, phase="Pending", conditions=NO_NODE)
    world.wait(15)
    assert world.reason("AgentsReady") == ("False", "AgentsStarting")
    assert "pod small-agents-1 has no node: 0/3 nodes: cpu" in world.condition("AgentsReady").message


def test_a_quota_that_forbids_pods_of_agents_is_told(world: World) -> None:
    world.to_running(**AGENTS)
    report(world, 0, {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA})
    world.wait(15)
    assert world.reason("AgentsReady") == ("False", "AgentsRefused")
    assert world.condition("AgentsReady").message == f"0 of 2 pods of agents are ready; {QUOTA}"
    assert world.cluster.events("AgentsRefused") and world.status.phase == "Running"


def test_a_quota_that_forbids_the_deployment_itself_is_told(world: World) -> None:
    quota = "exceeded quota: team, requested: count/deployments.apps=1"
    world.cluster.refuse = lambda verb, kind, name: (
        Forbidden(verb, kind, KEY.namespace, quota) if (verb, kind) == ("create", DEPLOYMENT) else None
    )
    world.submit(**AGENTS)
    world.settle()
    assert any(quota in item.message for item in world.status.conditions), world.status


@pytest.mark.parametrize("owner", ["other-5d8f", "small-agents", "small-agents-5d8f-5d8f"])
def test_a_pod_of_somebody_else_with_the_label_of_agents_says_nothing(world: World, owner: str) -> None:
    world.to_running(**AGENTS)
    report(world, 2)
    put_agent(world, owner, containerStatuses=agent_container(waiting=IMAGE))
    world.wait(15)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")


def test_the_look_that_gives_agents_back_says_so_itself(world: World) -> None:
    """No watch tells that they have gone."""
    world.to_running(**AGENTS)
    report(world, 2)
    world.wait(15)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")
    world.edit(suspend=True)
    for _ in range(60):
        world.clock.now += 10
        world.cluster.end_pods()
        world.reconcile()
        if not deployments(world):
            break
    assert deployments(world) == [] and world.reason("AgentsReady") == ("False", "AgentsStopped")


def test_pods_of_agents_that_go_or_are_over_say_nothing(world: World) -> None:
    world.to_running(**AGENTS)
    report(world, 2)
    put_agent(world, phase="Failed", reason="Evicted", containerStatuses=agent_container(waiting=IMAGE))
    world.wait(15)
    assert world.reason("AgentsReady") == ("True", "AllAgentsReady")
