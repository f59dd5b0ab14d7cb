"""Ray Serve itself: services of a job as the supervisor starts them, asked over HTTP."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.local.services import ServicesPlace, services_environment
from rljob_worker.process.child import LoggedChild, ready_line
from rljob_worker.process.last_words import read_last_words
from rljob_worker.process.marked_processes import end_marked_processes, marked_pids
from rljob_worker.tests.documents import plan_of
from rljob_worker.tests.waiting import wait_for

HERE = Path(__file__).parent
START_SECONDS = 5 * TEST_TIMEOUT_SECONDS
MARK = "services-of-a-test"


@contextlib.contextmanager
def services(folder, *specs):
    """The process that serves these, and its environment; nobody of its family is left."""
    plan = plan_of(services=list(specs))
    (folder / "plan.json").write_text(plan.canonical_json())
    (folder / "token").write_text("s3cret")
    scratch = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rljob-test-XXXXXX"], text=True).strip())
    mark = f"{MARK}-{folder.name}-{os.getpid()}"
    lifeline, end = os.pipe()
    place = ServicesPlace(plan, folder / "plan.json", folder, scratch, HERE, mark, lifeline, hosts_of(plan), "s3cret")
    environment = services_environment(os.environ, place, folder / "token", folder / "words.json")
    command = [sys.executable, "-P", "-m", "rljob_worker.services", "0"]
    log = folder / "services.log"
    process = LoggedChild("services", command, environment, log, lifeline_fd=lifeline, death_signal=signal.SIGKILL)
    try:
        yield process, mark
    finally:
        os.close(end)
        process.kill()
        assert end_marked_processes(mark, grace_seconds=0.0)
        os.close(lifeline)
        subprocess.run(["rm", "-rf", str(scratch)], check=True)


def healthy(process):
    """The address, once all services are healthy."""
    wait_for(lambda: process.ready() or process.code() is not None, START_SECONDS)
    assert process.code() is None, process.log.read_text()
    return f"http://127.0.0.1:{process.ready()['port']}"


def ask(url, body, token="s3cret"):
    """(status, what was answered)."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TEST_TIMEOUT_SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def probed(url):
    """What a probe is answered."""
    try:
        with urllib.request.urlopen(f"{url}/-/readyz", timeout=TEST_TIMEOUT_SECONDS) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


ROWS = {"rows": [{"prompt": "p", "response": "abc"}, {"prompt": "p", "response": "x"}]}


@pytest.mark.slow
def test_services_answer_whoever_has_the_token_and_end_with_who_started_them(tmp_path):
    """One that dies is reported until it is back, and costs no other."""
    grave = tmp_path / "grave"
    own = {"name": "own", "run": "served_here:mortal", "options": {"grave": str(grave)}}
    scaled = {"name": "scaled", "run": "served_here:scaled", "options": {"scale": 2.0}}
    with services(tmp_path, own, scaled) as (process, mark):
        url = healthy(process)
        assert_answers(url)
        assert ask(f"{url}/own", ROWS) == (200, {"rewards": [3.0, 1.0]})
        ask(f"{url}/own", {"die": True})
        wait_for(lambda: probed(url) == 503, START_SECONDS)
        assert ask(f"{url}/scaled", ROWS) == (200, {"rewards": [6.0, 2.0]}) and process.code() is None
        grave.unlink()
        wait_for(lambda: probed(url) == 200, START_SECONDS)
        assert ask(f"{url}/own", ROWS) == (200, {"rewards": [3.0, 1.0]})
        assert len(marked_pids(mark)) > 3
        assert ready_line(process.log.read_text()) is not None
        process.signal(signal.SIGKILL)
        wait_for(lambda: process.code() is not None)
        assert end_marked_processes(mark, grace_seconds=0.0) and marked_pids(mark) == []


def assert_answers(url):
    """Rows with the token, probes without it."""
    assert ask(f"{url}/scaled", ROWS) == (200, {"rewards": [6.0, 2.0]})
    for stranger in ("", "guess"):
        status, said = ask(f"{url}/scaled", ROWS, token=stranger)
        assert status == 401 and "token" in said
    with urllib.request.urlopen(f"{url}/-/healthz", timeout=TEST_TIMEOUT_SECONDS) as response:
        assert response.status == 200
    assert probed(url) == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "code", "words"),
    [
        ("served_here:broken", 64, "does not start: .*ValueError: no such head"),
        ("served_here:never", 75, "not healthy after healthSeconds 1: "),
        ("served_here:absent", 64, "served_here has no 'absent'"),
    ],
)
def test_an_application_that_cannot_be_served_is_named(tmp_path, run, code, words):
    seconds = 1 if code == 75 else 600
    with services(tmp_path, {"name": "mine", "run": run, "healthSeconds": seconds}) as (process, _):
        wait_for(lambda: process.code() is not None, START_SECONDS)
        last_words = read_last_words(tmp_path / "words.json")
        assert process.code() == code, process.log.read_text()
        assert last_words is not None and last_words.code == code
        assert re.search(words, last_words.cause), last_words.cause
