"""`rljob submit` and its likes, as somebody with a kubeconfig types them."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.jobs import NamespaceJobs, small_spec
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

REWARDS = "def score(row):\n    return float(len(row['response']) % 3)\n"


def rljob(jobs: NamespaceJobs, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in the test's namespace."""
    environment = {**os.environ, "KUBECONFIG": str(jobs.cluster.kubeconfig)}
    command = [sys.executable, "-P", "-m", "rljob_worker.cli", *map(str, words), "--namespace", jobs.namespace]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=5 * TEST_TIMEOUT_SECONDS, check=False
    )


def test_a_job_goes_from_a_laptop_with_its_code_and_is_followed_to_its_end(jobs: NamespaceJobs, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_rewards.py").write_text(REWARDS)
    spec = small_spec(rewards=[{"name": "mine", "run": "my_rewards:score"}])
    document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "laptop"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    done = rljob(jobs, "submit", tmp_path / "job.yaml", "--code", tmp_path / "code", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    # Four small steps may begin and end between two polls, so "running" need not be among the lines.
    assert "attempt 1, 0/1 pods ready" in done.stdout and "laptop: succeeded after 4 of 4 steps" in done.stdout
    listed = rljob(jobs, "get").stdout.splitlines()
    assert listed[1].split()[:2] == ["laptop", "Succeeded"]
    assert rljob(jobs, "logs", "laptop").returncode == 0
    again = rljob(jobs, "submit", tmp_path / "job.yaml")
    assert again.returncode == 64 and "there is a job laptop" in again.stderr
    assert rljob(jobs, "delete", "laptop").stdout == "laptop: deleted\n"


def test_wrong_words_are_answered_before_a_job_is_made(jobs: NamespaceJobs, tmp_path: Path) -> None:
    absent = rljob(jobs, "get", "absent")
    assert absent.returncode == 64 and f"no job absent in namespace {jobs.namespace}" in absent.stderr
    nowhere = rljob(jobs, "get", "--context", "nowhere")
    assert nowhere.returncode == 64 and "cannot log in to a cluster" in nowhere.stderr
