"""What a job's own code says costs that job its end at most, and the others nothing."""

from pathlib import Path

import pytest

from e2e.cluster.waiting import wait_until
from e2e.jobs import ON_STORAGE, NamespaceJobs, small_spec
from e2e.operator import InstalledOperator

SERVE = """
import http.server

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[" * 200_000 if self.path == "/progress" else b"ok")

http.server.HTTPServer(("", 9400), Page).serve_forever()
"""
REWARD = """
def broken(*_, **__):
    raise ValueError("cannot score '" + chr(0xd83d) + "'")
"""


def test_a_job_that_answers_with_nesting_costs_the_job_beside_it_nothing(
    jobs: NamespaceJobs, storage: Path, operator: InstalledOperator
) -> None:
    starts = operator.num_restarts()
    container = {"name": "worker", "command": ["python", "-c", SERVE]}
    template = {"spec": {"containers": [container]}}
    group = {"name": "train", "accelerator": {"profile": "cpu", "count": 1}, "template": template}
    hostile = jobs.apply("hostile", small_spec(workerGroups=[group]))
    hostile.until_phase("Running")
    said = "answered something other than progress: recursion limit exceeded"
    wait_until(lambda: said in hostile.condition("Progressing").get("message", ""), "the answer is refused", 180, 0.5)
    jobs.apply("good", small_spec(**ON_STORAGE)).until_succeeded()
    assert hostile.phase == "Running" and operator.num_restarts() == starts
    hostile.patch(suspend=True)
    hostile.until_phase("Suspended")


@pytest.mark.slow
def test_a_reward_that_raises_half_an_emoji_ends_its_job_with_that_cause(jobs: NamespaceJobs, storage: Path) -> None:
    jobs.kubectl("create", "configmap", "hostile-rewards", f"--from-literal=hostile_rewards.py={REWARD}")
    job = jobs.apply(
        "emoji",
        small_spec(
            **ON_STORAGE,
            code={"configMap": "hostile-rewards"},
            rewards=[{"name": "broken", "run": "hostile_rewards:broken"}],
            failurePolicy={"maxRestarts": 0},
        ),
    )
    job.until_phase("Failed")
    assert "cannot score '\\ud83d'" in job.condition("Failed")["message"]
