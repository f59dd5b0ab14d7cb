"""Pods of agents beside a job: what they are given, and what holds for them as for its other pods."""

import json

from rljob_api.vocabulary import keys
from rljob_operator.gangs.kueue.workload import workload
from rljob_operator.manifests.agents import agents_deployment, agents_ingress
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.children import pod_security_problem, static_children
from rljob_operator.manifests.context import Placement
from rljob_operator.manifests.tests.builders import TWO_GROUPS, env_of, make_context, named
from rljob_operator.manifests.violations import job_violations

AGENT = {"name": "agent", "image": "registry.example/agent:1", "command": ["python", "agent.py"]}


def context_of(*overrides, settings=None, **container):
    template = {"spec": {"containers": [AGENT | container]}}
    conversation = {
        "endpoint": {"port": 9410, "listen": "Pods"},
        "agentPool": {"workerGroup": {"replicas": 3, "template": template}},
    }
    more = (f"rollout.conversation={json.dumps(conversation)}", "dataBuffer.tls=true", *overrides)
    return make_context(*more, settings=settings)


def deployment_of(context, attempt=1, placement=None):
    return agents_deployment(context, context.spec.agent_group, attempt, placement or Placement())


def test_a_deployment_makes_pods_of_the_users_image_that_know_the_endpoints_and_one_authority():
    deployment = deployment_of(context_of(), attempt=2)
    spec = deployment["spec"]
    pod = spec["template"]
    assert (deployment["metadata"]["name"], spec["replicas"]) == ("small-agents", 3)
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert keys.LABEL_JOB not in pod["metadata"]["labels"]  # the operator looks after pods with it
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["command"]) == (AGENT["image"], AGENT["command"])
    variables = env_of(container)
    assert variables["RLJOB_ENDPOINT"] == "https://small-train-0.small.team.svc:9410/rljob/v1"
    assert variables["SSL_CERT_FILE"] == "/etc/rljob/tls/ca.crt"
    token = named(container["env"], "RLJOB_AGENT_TOKEN")["valueFrom"]["secretKeyRef"]
    assert token == {"name": "small-token", "key": "agents-token"}
    secret = named(pod["spec"]["volumes"], "tls")["secret"]
    assert secret["secretName"] == "small-tls-a2" and [item["key"] for item in secret["items"]] == ["ca.crt"]
    assert (pod["spec"]["restartPolicy"], pod["spec"]["automountServiceAccountToken"]) == ("Always", False)


def test_agents_are_told_of_every_worker_that_leads_a_copy_of_the_generating_model():
    def ports(*overrides):
        (container,) = deployment_of(context_of(*overrides))["spec"]["template"]["spec"]["containers"]
        urls = env_of(container)["RLJOB_ENDPOINTS"].split(",")
        return [url.removeprefix("https://small-").removesuffix("/rljob/v1").split(".")[0] for url in urls], [
            int(url.rpartition(":")[2].partition("/")[0]) for url in urls
        ]

    assert ports(TWO_GROUPS) == ([f"rollout-{host}" for host in range(4)], [9410] * 4)
    several = "workerGroups=[{name: train, replicas: 2, accelerator: {count: 4}}]"
    assert ports(several) == (["train-0"] * 4 + ["train-1"] * 4, [9410, 9411, 9412, 9413] * 2)
    assert ports(several, "rollout.parallelism={tensor: 2}", "rollout.engine=VLLM")[1] == [9410, 9412] * 2


def test_a_network_policy_lets_agents_reach_endpoints_alone():
    context = context_of(settings={"networkPolicy": {"enabled": True}})
    (policy,) = [child for child in static_children(context) if child["kind"] == "NetworkPolicy"]
    allowed = [rule for rule in policy["spec"]["ingress"] if rule == agents_ingress(context)]
    assert allowed == [
        {
            "from": [{"podSelector": {"matchLabels": {keys.LABEL_AGENTS: "small"}}}],
            "ports": [{"protocol": "TCP", "port": 9410}],
        }
    ]
    assert agents_ingress(make_context()) is None


def test_what_holds_for_pods_of_a_job_holds_for_agents():
    assert pod_security_problem(context_of(), {}) is None
    root = context_of(securityContext={"privileged": True})
    assert "agentPool.workerGroup needs what spec.podSecurity" in pod_security_problem(root, {})
    violations = job_violations(Ceilings(privileged=False), root)
    assert any(item.startswith("agents: container agent is privileged") for item in violations), violations


def test_a_queue_counts_agents_and_says_where_they_run():
    requests = {"resources": {"requests": {"cpu": "2"}}}
    counted = workload(context_of(**requests), "kueue.x-k8s.io/v1beta2", None)["spec"]["podSets"]
    assert [(item["name"], item["count"]) for item in counted] == [("train", 1), ("agent-pool", 3)]
    container = counted[1]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    placement = Placement(node_selector={"pool": "cpus"}, tolerations=({"key": "cpus", "operator": "Exists"},))
    spec = deployment_of(context_of(), placement=placement)["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "cpus"} and {"key": "cpus", "operator": "Exists"} in spec["tolerations"]
