"""Waiting for a complete rank table."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.vocabulary.keys import ENV_ATTEMPT, ENV_GROUP, ENV_HOST_INDEX, ENV_PLAN, ENV_RANK_TABLE
from rljob_worker.errors import DeadlineExceeded, InvalidJob
from rljob_worker.launcher.rank_table import await_rank_table
from rljob_worker.tests.documents import plan_of
from rljob_worker.tests.waiting import wait_for


class Clock:
    """Time passes only in `sleep`, when `then` says what happens meanwhile."""

    def __init__(self, then=lambda seconds: None):
        self.now, self.then = 0.0, then

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(self.now)


def wait(path, clock, seconds="5"):
    environment = {"RLJOB_RANK_TABLE": str(path), "RLJOB_RANK_TABLE_SECONDS": seconds}
    await_rank_table(environment, clock=clock, sleep=clock.sleep)
    return clock.now


def test_without_a_rank_table_nobody_waits():
    await_rank_table({})


def test_the_wait_ends_when_the_table_is_complete(tmp_path):
    path = tmp_path / "hccl.json"
    path.write_text('{"status": "initializing"}')

    def written(now):
        if now == 1.0:
            path.write_text('{"status": "comp')  # torn: read between two writes
        if now == 3.0:
            path.write_text(json.dumps({"status": "completed", "server_list": []}))

    assert wait(path, Clock(written)) == 3.0


@pytest.mark.parametrize(
    ("text", "status"),
    [(None, "missing"), ('{"status": "initializing"}', "initializing"), ("[", "unreadable"), ("[]", "unreadable")],
)
def test_a_table_that_never_completes_ends_the_pod_and_says_what_it_is(tmp_path, text, status):
    path = tmp_path / "hccl.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DeadlineExceeded, match=f"hccl.json is {status} after 5 s"):
        wait(path, Clock())


def test_a_wrong_number_of_seconds_is_named(tmp_path):
    with pytest.raises(InvalidJob, match="RLJOB_RANK_TABLE_SECONDS is 'soon'"):
        wait(tmp_path, Clock(), "soon")


def catches_sigterm(process):
    """Whether the process has a handler: one bit of a mask that the kernel shows."""
    assert process.poll() is None
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_pod_that_waits_hears_that_it_should_stop(tmp_path):
    (tmp_path / "plan.json").write_text(plan_of().canonical_json())
    who = {ENV_PLAN: str(tmp_path / "plan.json"), ENV_GROUP: "train", ENV_HOST_INDEX: "0", ENV_ATTEMPT: "1"}
    environment = os.environ | who | {ENV_RANK_TABLE: str(tmp_path / "hccl.json")}
    with subprocess.Popen([sys.executable, "-m", "rljob_worker.launcher"], env=environment) as process:
        wait_for(lambda: catches_sigterm(process))
        process.terminate()
        # 143, and not -15: process 1 of a container has no default for a signal
        assert process.wait(TEST_TIMEOUT_SECONDS) == 143
