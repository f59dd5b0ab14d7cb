"""The shipped examples run on a cluster; every panel of every dashboard shows them. That they learn: `make learn`."""

from pathlib import Path

from charts.dashboards.alerts import ALERTS
from e2e.jobs import EXAMPLES, ON_STORAGE, ClusterJob, NamespaceJobs, example, metrics, small_spec
from e2e.prometheus import Prometheus, empty_panels

SPREAD = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
ONE_POD_A_NODE = {"spec": {"topologySpreadConstraints": [SPREAD]}}
"""What is merged over the operator's own constraint of that key, which only prefers."""


JUDGE = """
import http.server, json, os, threading


class Judge(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        is_known = self.headers["Authorization"] == "Bearer " + os.environ["JUDGE_TOKEN"]
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        self.send_response(200 if is_known else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"rewards": [len(row["response"]) for row in rows]}).encode())


try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
except OSError:  # another reward process of the pod serves
    pass


def nothing(row):
    return 0.0
"""
"""A reward whose import serves a model beside it, as a pod of the user's would."""


def judged(jobs: NamespaceJobs) -> dict[str, object]:
    """Fields of a job with a reward by URL, whose token comes from a Secret; it watches, with weight 0."""
    jobs.kubectl("create", "configmap", "judge", f"--from-literal=judge.py={JUDGE}")
    jobs.kubectl("create", "secret", "generic", "judge", "--from-literal=token=s3cret")
    asks = {"url": "http://127.0.0.1:8123/judge", "tokenVariable": "JUDGE_TOKEN", "onError": "Retry"}
    rewards = [
        {"name": "correct", "run": "rljob_worker.rewards:final_number", "column": "answer"},
        {"name": "nothing", "run": "judge:nothing", "weight": 0.0},
        {"name": "length", "run": "rljob_worker.rewards:served", "weight": 0.0, **asks},
    ]
    token = {"name": "JUDGE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "token"}}}
    return {"rewards": rewards, "code": {"configMap": "judge"}, "env": [token]}


TALK = """
async def talk(task, policy, world):
    said = await policy.chat()
    world.metric("letters", len(said.content))
    await world.agents["listener"].chat(task.messages)
"""
"""A conversation of two agents, of one turn each, that reports a figure."""


def talking(jobs: NamespaceJobs) -> ClusterJob:
    """A small job of conversations, of agents that are rewarded apart."""
    jobs.kubectl("create", "configmap", "talk", f"--from-literal=talk.py={TALK}")
    team = {"agents": [{"name": "speaker"}, {"name": "listener"}], "reward": "PerAgent"}
    rollout = {"maxResponseTokens": 20, "conversation": {"run": "talk:talk", **team}}
    return jobs.apply("talks", small_spec(rollout=rollout, code={"configMap": "talk"}, **ON_STORAGE))


def elastic(jobs: NamespaceJobs) -> ClusterJob:
    """A small job whose generators come and go, until it is deleted."""
    groups = [
        {"name": "train", "accelerator": {"profile": "cpu", "count": 1}},
        {"name": "rollout", "accelerator": {"profile": "cpu", "count": 1}, "elastic": {"min": 1, "max": 2}},
    ]
    rollout = {"maxResponseTokens": 20, "maxStaleness": 1}
    apart = {"workerGroups": groups, "generators": 1, "rollout": rollout, "dataBuffer": {"memory": "160Mi"}}
    return jobs.apply("elastic", small_spec(**apart, **ON_STORAGE, stop={"steps": 10_000}))


def on_node(name: str) -> dict[str, object]:
    """The template of pods that run on one node."""
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": name}}}


def test_shipped_example_runs_as_it_is(jobs: NamespaceJobs) -> None:
    """`kubectl apply -f examples/arithmetic-grpo.yaml`, with no storage at hand."""
    job = jobs.apply_file(EXAMPLES / "arithmetic-grpo.yaml")
    job.until_step(2)
    header, row = jobs.kubectl("get", "rlj").splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "REWARD", "READY", "RESTARTS", "AGE"]
    assert row.split()[:2] == ["arithmetic-grpo", "Running"]
    assert 0 < float(job.status["progress"]["reward"]) < 1
    assert "Running" in jobs.events(job.name)


def test_jobs_over_two_nodes_fill_every_panel(jobs: NamespaceJobs, storage: Path, prometheus: Prometheus) -> None:
    """GRPO over two pods on two nodes; PPO generates on one node, a step ahead of training on the other, sidecar to
    sidecar, with responses that go on in later steps; a job of conversations, and one with an elastic group."""
    talks = talking(jobs)
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "cpu", "count": 1}, "template": ONE_POD_A_NODE}
    short = {"stop": {"steps": 10}, "checkpoint": {"everySteps": 5, "keepLast": 2, "keepBest": 1}}
    grpo = jobs.apply("grpo", example("arithmetic-grpo", workerGroups=[group], **short, **ON_STORAGE))
    grpo.until("two pods", lambda: len(grpo.pods()) == 2 and all(pod.node for pod in grpo.pods()))
    assert {pod.node for pod in grpo.pods()} == {"node1", "node2"}
    grpo.until_succeeded(300)
    assert [row["step"] for row in metrics(storage, "grpo")][-1] == 10

    groups = [
        {"name": "rollout", "accelerator": {"profile": "cpu", "count": 1}, "template": on_node("node2")},
        {"name": "train", "accelerator": {"profile": "cpu", "count": 1}, "template": on_node("node1")},
    ]
    partial = {"tokensPerRound": 6, "maxCarries": 4}
    rollout = {"maxResponseTokens": 20, "maxStaleness": 1, "partial": partial}
    apart = {"workerGroups": groups, "dataBuffer": {"memory": "160Mi", "deadlineSeconds": 120}, "rollout": rollout}
    ppo = jobs.apply("ppo", example("arithmetic-ppo", stop={"steps": 8}, **apart, **judged(jobs), **ON_STORAGE))
    ppo.until_step(3, 180)
    takers = elastic(jobs)
    assert {pod.node for pod in ppo.pods()} == {"node1", "node2"}
    ppo.until_succeeded(180)
    last = metrics(storage, "ppo")[-1]
    assert last["data/bytes_total"] > 0 and last["staleness/max"] > 1 and last["partial/age_max"] > 0
    assert last["service/length/requests_total"] > 0
    talks.until_succeeded(180)
    takers.until_step(2, 180)
    takers.until("a scrape", lambda: prometheus.has_samples("rljob_generator_tokens"))
    assert empty_panels(prometheus) == []
    assert prometheus.alert_rules() == {alert.name: "ok" for alert in ALERTS}
