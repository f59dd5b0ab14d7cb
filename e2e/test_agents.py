"""Pods of agents beside a job: they play its trajectories over TLS, come again alone, and a condition counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import ON_STORAGE, ClusterJob, NamespaceJobs, metrics, small_spec
from e2e.pods import ClusterPod

pytestmark = pytest.mark.slow

AGENT = """
import json, os, time, urllib.request

ENDPOINT, TOKEN = os.environ["RLJOB_ENDPOINT"], os.environ["RLJOB_AGENT_TOKEN"]

def post(url, token, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as response:
        return json.load(response) if response.status == 200 else None

def play(task):
    body = {"model": task["model"], "messages": task["messages"]}
    answer = post(task["base_url"] + "/chat/completions", task["api_key"], body)
    said = answer["choices"][0]["message"]["content"]
    time.sleep(0.1)
    won = task["columns"]["answer"] in said
    post(ENDPOINT + "/result", task["api_key"], {"reward": float(won), "metrics": {"letters": len(said)}})

while True:
    try:
        task = post(ENDPOINT + "/task", TOKEN, {"wait_seconds": 5})
        if task is not None:
            play(task)
    except OSError:
        time.sleep(0.5)
"""
IMAGE = "localhost/rljob-worker-cpu:dev"
START_SECONDS = 400
TRAJECTORIES = 16
"""Of a step."""


def spec(image: str = IMAGE, **fields: Any) -> dict[str, Any]:
    """Two agents in pods; one that goes takes its trajectory with it, which is one too many for two in a step."""
    agent = {
        "name": "agent",
        "image": image,
        "command": ["python", "-c", AGENT],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    group = {"replicas": 2, "template": {"spec": {"containers": [agent]}}}
    conversation = {
        "maxTurns": 1,
        "maxFailed": 1.5 / TRAJECTORIES,
        "columns": ["answer"],
        "endpoint": {"port": 9410, "listen": "Pods"},
        "agentPool": {"timeoutSeconds": 20, "claimSeconds": START_SECONDS, "workerGroup": group},
    }
    known = {
        "rewards": [{"name": "won", "run": "rljob_worker.rewards:environment_reward"}],
        "rollout": {"maxResponseTokens": 20, "conversation": conversation},
        "dataBuffer": {"memory": "32Mi", "deadlineSeconds": START_SECONDS, "tls": True},
        **ON_STORAGE,
    }
    return small_spec(**{**known, **fields})


def agents(job: ClusterJob, jobs: NamespaceJobs) -> list[ClusterPod]:
    """Those that run."""
    listed = jobs.read("api/v1", "pods", labelSelector=f"rljob.dev/agents-of={job.name}")
    return [pod for pod in map(ClusterPod, listed["items"]) if pod.is_running]


def until_ready(job: ClusterJob) -> None:
    job.until("agents", lambda: job.condition("AgentsReady").get("status") == "True", START_SECONDS)


def test_agent_that_is_killed_comes_again_alone_and_every_trajectory_is_played(
    jobs: NamespaceJobs, storage: Path
) -> None:
    job = jobs.apply("played", spec(stop={"steps": 30}))
    until_ready(job)
    job.until_step(2, START_SECONDS)
    killed, stays = agents(job, jobs)
    jobs.kubectl("delete", "pod", killed.name, "--force", "--grace-period=0", "--wait=false")
    job.until("another agent", lambda: {stays.name} < {pod.name for pod in agents(job, jobs)} - {killed.name})
    until_ready(job)
    job.until_succeeded(START_SECONDS)
    assert (job.status["attempt"], job.status["restarts"]) == (1, 0)
    rows = metrics(storage, "played")
    assert [row["step"] for row in rows] == list(range(1, 31)), "no step was lost"
    num_failed = [round(row["conversation/failed_fraction"] * TRAJECTORIES) for row in rows]
    assert sum(num_failed) <= 1, num_failed
    assert all(row["conversation/turns_mean"] == 1 and "conversation/world/letters" in row for row in rows)
    job.until("no agent", lambda: not agents(job, jobs))
    assert job.condition("AgentsReady")["reason"] == "AgentsStopped"
