"""Tests of the client's commands: what they print and how they exit."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from rljob.commands import COMMANDS, age_text, jobs_table
from rljob.tests.builders import body, condition, job, pod
from rljob.tests.fake_api import JOBS, PODS

BY_NAME = {command.name: command for command in COMMANDS}


@pytest.fixture
def rljob(kubeconfig):
    """Runs a subcommand in this process: what it printed and its code, or the error it raised."""

    def run(name, *words):
        done = CliRunner().invoke(BY_NAME[name], [*words, "--kubeconfig", str(kubeconfig)], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.output, done.return_value

    return run


def test_submit_says_where_the_job_went(rljob, job_file):
    assert rljob("submit", str(job_file)) == ("small: submitted to namespace team\n", 0)


def test_submit_follows_to_the_end_and_ends_as_the_job_does(rljob, api, job_file):
    ended = body(phase="Failed", attempt=1, lastFailure={"exitCode": 65}, progress={"step": 2, "totalSteps": 40})
    ended["status"]["conditions"] = [condition("Failed", "True", "DataUnusable", "row 3 has no prompt")]
    api.status_of_new = ended["status"]
    output, code = rljob("submit", str(job_file), "--follow")
    assert code == 65
    assert "step 2/40" in output and "small: failed after 2 of 40 steps: DataUnusable: row 3 has no prompt" in output


def test_jobs_are_shown_as_a_table_or_as_json(rljob, api):
    assert rljob("get") == ("no jobs in namespace team\n", 0)
    api.put(
        f"{JOBS}/small", body(phase="Running", ready="2/2", progress={"step": 3, "totalSteps": 40, "reward": "0.5"})
    )
    shown, _ = rljob("get")
    assert shown.splitlines()[1].split()[:6] == ["small", "Running", "2/2", "3/40", "0.500", "0"]
    assert json.loads(rljob("get", "small", "--json")[0])["reward"] == 0.5


def test_logs_are_those_of_the_host_that_is_asked_for(rljob, api):
    api.put(f"{JOBS}/small", body(phase="Running", attempt=2))
    for group, host in (("train", 0), ("train", 1), ("rollout", 1)):
        api.put(f"{PODS}/{group}-{host}", pod(f"{group}-{host}", group, host, 2))
        api.logs[f"{PODS}/{group}-{host}/log"] = f"of {group} {host}\n"
    assert rljob("logs", "small", "--group", "train") == ("of train 0\n", 0)
    assert rljob("logs", "small", "--group", "train", "--host", "1") == ("of train 1\n", 0)


def test_words_are_the_same_whoever_asks(rljob, api):
    api.put(f"{JOBS}/small", body(phase="Running", progress={"step": 3}))
    assert rljob("suspend", "small")[0] == "small: is to be suspended after step 3\n"
    assert rljob("resume", "small")[0] == "small: goes on after step 3\n"
    assert rljob("delete", "small")[0] == "small: deleted\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86400, "1d"), (200000, "2d")],
)
def test_ages_are_as_kubectl_has_them(seconds, text):
    assert age_text(seconds) == text


def test_columns_are_as_wide_as_what_is_in_them():
    lines = jobs_table([job(phase="Running")], datetime(2026, 1, 31, 13, tzinfo=UTC)).splitlines()
    assert lines == [
        "NAME   PHASE    READY  STEP  REWARD  RESTARTS  AGE  REASON",
        "small  Running  0/0    0/40  –       0         1h",
    ]


def test_the_command_line_knows_them_and_loads_nothing_for_its_help():
    code = (
        "import sys; from rljob_worker.cli.app import app; "
        "print(sorted(app.commands)); print('kubernetes' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.splitlines()
    assert (
        all(name in names for name in ("submit", "get", "logs", "suspend", "resume", "delete"))
        and heavy == "False False"
    )
