"""Real launchers, data buffers that only say that they serve, and workers that play a script, on one machine."""

import os
import signal
import socket
from pathlib import Path

import pytest
import yaml

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.tests.test_commands import write_job
from rljob_worker.errors import InvalidJob
from rljob_worker.local.services import TOKEN_FILE
from rljob_worker.process import frames
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.host_0 import EXIT_SECONDS
from rljob_worker.supervision.hosts.connections import OTHER_TOKEN
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.secret import services_token
from rljob_worker.supervision.member import host_context
from rljob_worker.supervision.session import check_mark
from rljob_worker.supervision.tests.launched import (
    TOKEN,
    environment_of,
    fake_arguments,
    free_port,
    launching,
    write_wide_job,
)
from rljob_worker.tests.documents import plan_of
from rljob_worker.tests.waiting import wait_for

STEPPED = ["metrics", {"step": 1}]


@pytest.fixture
def hosts(tmp_path):
    """Hosts of a job of three pods."""
    write_wide_job(tmp_path, failurePolicy={"maxRestarts": 1})
    with launching(tmp_path) as launched:
        yield launched


@pytest.fixture
def pair(tmp_path):
    """Hosts of a job of two pods."""
    write_wide_job(tmp_path, replicas=2)
    with launching(tmp_path) as launched:
        yield launched


def start(hosts, script, numbers=(0, 1, 2), *, port=None, arguments=(), num_hosts=3, **changes):
    """The launchers of these hosts; the port."""
    port = port or free_port()
    for number in numbers:
        hosts.fork(number, fake_arguments(script, *arguments), environment_of(number, num_hosts, port, **changes))
    return port


def all_exit(hosts, code):
    assert set(hosts.codes().values()) == {code}, hosts.everything()


def test_a_job_on_three_hosts_runs_to_its_end(hosts):
    script = {"*": [["say_environment", "RLJOB_HOST_INDEX"], ["say_environment", "RANK"], STEPPED]}
    start(hosts, script)
    all_exit(hosts, 0)
    assert "all 3 hosts are here" in hosts.said(0) and "tiny: succeeded after 1 of 10 steps" in hosts.said(0)
    assert hosts.said(1) == hosts.said(2) == ""
    logs = hosts.folder / "runs" / "tiny" / "logs" / "attempt-1"
    said = [(logs / f"worker-train-{host}-{host}.log").read_text() for host in range(3)]
    assert said == [f"RLJOB_HOST_INDEX={host}\nRANK=None\n" for host in range(3)]
    assert RunDirectory(hosts.folder / "runs" / "tiny").read_note().phase == "Succeeded"


@pytest.mark.slow
def test_the_group_that_leads_is_on_host_0(tmp_path):
    write_job(tmp_path, groups=[("rollout", 1, 1), ("train", 2, 1)])
    with launching(tmp_path) as hosts:
        start(hosts, {"train-0": [["say_environment", "RLJOB_GROUP"], ["exit", 65]], "*": [["hang"]]})
        all_exit(hosts, 65)
        assert "host 0 (" in hosts.said(0) and "worker-train-0-0: " in hosts.said(0)


@pytest.mark.slow
def test_the_cause_of_a_failure_is_told_on_all_hosts(pair):
    words = {"code": 65, "cause": "BadData: no column answer"}
    start(pair, {"train-1": [["words", words], ["exit", 65]], "*": [["hang"]]}, (0, 1), num_hosts=2)
    all_exit(pair, 65)
    for host in range(2):
        assert "host 1 (" in pair.said(host) and "worker-train-1-1: BadData: no column answer" in pair.said(host)


@pytest.mark.slow
def test_a_failure_begins_a_new_attempt_on_the_same_hosts(hosts):
    """As where a job has services, too."""
    start(hosts, {"attempt-1": [["exit", 75]], "*": [["say_environment", "RLJOB_ATTEMPT"]]})
    all_exit(hosts, 0)
    assert "restart 1 of 1" in hosts.said(0)
    second = hosts.folder / "runs" / "tiny" / "logs" / "attempt-2"
    assert [path.read_text() for path in second.glob("worker-*")] == 3 * ["RLJOB_ATTEMPT=2\n"]


@pytest.mark.slow
def test_restarts_have_an_end(hosts):
    start(hosts, {"*": [["exit", 75]]})
    all_exit(hosts, 75)
    assert "all 1 restarts of failurePolicy are used up" in hosts.said(2)


def test_every_host_gets_a_certificate_of_its_own(tmp_path):
    write_wide_job(tmp_path, replicas=2, dataBuffer={"tls": True})
    with launching(tmp_path) as hosts:
        start(hosts, {"*": [["list_files", "RLJOB_TLS_DIR"]]}, (0, 1), num_hosts=2)
        all_exit(hosts, 0)
        logs = tmp_path / "runs" / "tiny" / "logs" / "attempt-1"
        for host in (0, 1):
            said = (logs / f"worker-train-{host}-{host}.log").read_text()
            assert said == f"tls-1/train-{host}: ca.crt tls.crt tls.key\ntls-1: train-{host}\n"


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_host_that_dies_ends_the_attempt_on_all_with_its_name(hosts, victim):
    start(hosts, {"*": [["say", "here"], ["hang"]]})
    logs = hosts.folder / "runs" / "tiny" / "logs" / "attempt-1"
    hosts.wait_for(lambda: all_spoke(logs))
    hosts.processes[victim].kill()
    codes = hosts.codes()
    assert codes.pop(victim) == -signal.SIGKILL
    assert set(codes.values()) == {75}, hosts.everything()
    for host in codes:
        assert f"host {victim}" in hosts.said(host) and "is gone" in hosts.said(host)


def all_spoke(logs, num_hosts=3):
    return [log.read_text() for log in logs.glob("worker-*")] == ["here\n"] * num_hosts


def test_host_0_that_does_not_come_is_named(hosts):
    start(hosts, {"*": []}, (1,), arguments=["--wait", "1"])
    all_exit(hosts, 75)
    assert "host 0 at 127.0.0.1:" in hosts.said(1) and "does not answer within 1 s" in hosts.said(1)


def test_more_hosts_than_pods_are_refused_everywhere(hosts):
    start(hosts, {"*": []}, (0, 1), num_hosts=2)
    all_exit(hosts, 64)
    for host in (0, 1):
        assert "the job has 3 pods (train 3) and there are 2 hosts (WORLD_SIZE)" in hosts.said(host)


@pytest.mark.slow
def test_hosts_that_were_told_of_other_numbers_are_refused(hosts):
    port = start(hosts, {"*": []}, (0, 1))
    start(hosts, {"*": []}, (2,), port=port, num_hosts=4)
    all_exit(hosts, 64)
    for host in range(3):
        assert "there are 4 hosts (WORLD_SIZE)" in hosts.said(host) and "host 2 (" in hosts.said(host)


def test_another_job_file_on_one_host_ends_the_launch_with_what_differs(hosts):
    port = start(hosts, {"*": []}, (0, 2))
    start(hosts, {"*": []}, (1,), port=port, arguments=["--set", "stop.steps=7"])
    all_exit(hosts, 64)
    for host in range(3):
        assert "host 1 (" in hosts.said(host) and "has another job file, or other --set: spec.stop" in hosts.said(host)


@pytest.mark.slow
def test_a_host_that_cannot_read_the_job_is_named_on_all(hosts, tmp_path):
    port = start(hosts, {"*": []}, (0, 2))
    hosts.fork(1, fake_arguments({}, file="gone.yaml"), environment_of(1, 3, port))
    all_exit(hosts, 64)
    for host in range(3):
        assert "cannot run its pod: there is no file gone.yaml" in hosts.said(host)


def test_what_keeps_host_0_from_running_is_told_to_those_who_come(hosts):
    job = hosts.folder / "job.yaml"
    spoilt = yaml.safe_load(job.read_text())
    spoilt["spec"]["data"]["batchSize"] = 0
    job.write_text(yaml.safe_dump(spoilt))
    start(hosts, {"*": []})
    all_exit(hosts, 64)
    assert "batchSize" in hosts.said(0) and "batchSize" in hosts.said(2)


@pytest.mark.slow
def test_two_jobs_on_one_port_do_not_meet(hosts, tmp_path):
    port = start(hosts, {"*": [STEPPED, ["wait_file", str(tmp_path / "go")]]}, (0, 1))
    hosts.wait_for(lambda: (hosts.folder / "runs" / "tiny" / "launch").exists())
    (tmp_path / "other").mkdir()
    write_wide_job(tmp_path / "other", name="other")
    with launching(tmp_path / "other") as others:
        start(others, {"*": []}, port=port, RLJOB_TOKEN="another-token-0123456789")
        assert others.codes() == {0: 64, 1: 64, 2: 64}, others.everything()
        assert f"host 0 cannot listen on port {port}" in others.said(0)
        assert "has another token" in others.said(1)
    start(hosts, {"*": [STEPPED, ["wait_file", str(tmp_path / "go")]]}, (2,), port=port)
    (tmp_path / "go").touch()
    all_exit(hosts, 0)
    assert "was turned away: it does not have the token of this job" in hosts.said(0)


@pytest.mark.slow
def test_strangers_disturb_nobody(hosts, tmp_path):
    port = start(hosts, {"*": [STEPPED, ["wait_file", str(tmp_path / "go")]]}, (0,))
    hosts.wait_for(lambda: (hosts.folder / "runs" / "tiny" / "launch").exists())
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as loud:
        loud.settimeout(TEST_TIMEOUT_SECONDS)
        frames.receive_frame(loud, 100)
        frames.send_frame(loud, b"GET / HTTP/1.1")
        assert frames.receive_frame(loud, 100) == OTHER_TOKEN
        start(hosts, {"*": [STEPPED, ["wait_file", str(tmp_path / "go")]]}, (1, 2), port=port)
        hosts.wait_for(lambda: "phase Running" in hosts.said(0) or "all 3 hosts are here" in hosts.said(0))
        (tmp_path / "go").touch()
        all_exit(hosts, 0)
        silent.close()
    assert "a caller from 127.0.0.1 was turned away: it is not a launcher" in hosts.said(0)


READY = [["block", 15], ["say", "here"]]
"""From then on a request to stop waits until it is asked for."""
STOPPABLE = {"*": [*READY, STEPPED, ["wait_signal", 15], ["exit", 76]]}


def running(hosts, num_hosts=3):
    """And every worker is ready."""
    directory = RunDirectory(hosts.folder / "runs" / "tiny")
    note = directory.read_note()
    return note is not None and note.phase == "Running" and all_spoke(directory.logs(note.attempt), num_hosts)


@pytest.mark.parametrize("asked", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_request_on_any_host_stops_all_with_a_checkpoint(hosts, asked):
    start(hosts, STOPPABLE)
    hosts.wait_for(lambda: running(hosts))
    hosts.processes[asked].send_signal(signal.SIGTERM if asked else signal.SIGINT)
    all_exit(hosts, 76)
    assert "stopping after this step or the next, with a checkpoint" in hosts.said(0)


@pytest.mark.slow
def test_a_signal_to_every_process_of_a_step_is_one_request(hosts):
    """As Slurm signals: launchers, data buffers, roots and workers alike."""
    start(hosts, STOPPABLE)
    hosts.wait_for(lambda: running(hosts))
    assert hosts.pids("fake_buffer") and hosts.pids("rljob_worker.forkserver") and hosts.pids("supervision.host_0")
    for pid in hosts.pids():
        os.kill(pid, signal.SIGTERM)
    all_exit(hosts, 76)


@pytest.mark.slow
def test_a_second_request_stops_all_now(pair):
    start(pair, {"*": [*READY, STEPPED, ["hang"]]}, (0, 1), num_hosts=2)
    pair.wait_for(lambda: running(pair, 2))
    pair.processes[1].send_signal(signal.SIGTERM)
    pair.wait_for(lambda: "stopping after this step" in pair.said(0))
    pair.processes[1].send_signal(signal.SIGTERM)
    all_exit(pair, 130)


def test_a_request_while_hosts_are_waited_for_ends_the_wait(hosts):
    start(hosts, {"*": []}, (0,))
    hosts.wait_for(lambda: (hosts.folder / "runs" / "tiny" / "launch").exists())
    hosts.processes[0].send_signal(signal.SIGINT)
    assert hosts.codes(EXIT_SECONDS) == {0: 130}, hosts.everything()


@pytest.mark.slow
def test_a_finished_job_is_finished_on_all_hosts(hosts):
    start(hosts, {"train-0": [["checkpoint", 10], STEPPED], "*": []})
    all_exit(hosts, 0)
    start(hosts, {"*": [["exit", 70]]})
    all_exit(hosts, 0)
    assert "is finished: 10 steps" in hosts.said(0)


def test_another_run_directory_than_that_of_host_0_is_told_apart(tmp_path):
    with pytest.raises(InvalidJob, match="is not the run directory of host 0.*--runs-dir"):
        check_mark(tmp_path, "mark", timeout_seconds=0.0)
    (tmp_path / "launch").write_text("mark")
    check_mark(tmp_path, "mark", timeout_seconds=0.0)
    check_mark(tmp_path / "elsewhere", "", timeout_seconds=0.0)  # checkpoints are in an object store


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ([], {"RANK": ""}, "nobody says which host this is"),
        ([], {"RANK": "x"}, "RANK is 'x'"),
        ([], {"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ([], {"MASTER_ADDR": "no.such.host.invalid", "RANK": "1"}, "does not answer within 1 s"),
        ([], {"RLJOB_TOKEN": ""}, "RLJOB_TOKEN is not set"),
        ([], {"RLJOB_TOKEN": "short"}, "RLJOB_TOKEN is not a secret"),
        (["--rank-file", "gone"], {}, "there is no file gone"),
        (["--rank-file", "job.yaml"], {}, "job.yaml, line 1"),
        (["--wait", "0"], {}, "--wait"),
        (["--set", "stop.stepz=1"], {"WORLD_SIZE": "1"}, "stepz"),
        (["--resume", "9"], {"WORLD_SIZE": "1"}, "--resume 9"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_in_words(tmp_path, arguments, changes, words):
    write_job(tmp_path)
    with launching(tmp_path) as hosts:
        hosts.fork(0, fake_arguments({}, "--wait", "1", *arguments), environment_of(0, 2, free_port()) | changes)
        (code,) = hosts.codes().values()
        assert code == (75 if "answer" in words else 64)
        assert words in hosts.said(0) and "Traceback" not in hosts.said(0), hosts.said(0)


def test_help_says_how_to_start_it(tmp_path):
    with launching(tmp_path) as hosts:
        hosts.fork(0, ["{}", "launch", "--help"], dict(os.environ))
        all_exit(hosts, 0)
        for word in ("srun --ntasks-per-node=1", "WORLD_SIZE", "--rank-file", "RLJOB_TOKEN", "75", "76"):
            assert word in hosts.said(0)


SERVED = [{"name": "judge", "run": "mine:app"}]


@pytest.fixture
def served(tmp_path):
    """Hosts of a job of two pods with a service."""
    write_wide_job(tmp_path, replicas=2, services=SERVED, failurePolicy={"maxRestarts": 1})
    with launching(tmp_path) as launched:
        yield launched


@pytest.mark.slow
def test_workers_of_all_hosts_find_the_services_beside_host_0(served):
    said = [["say_environment", "RLJOB_SERVICES"], ["say_environment", "RLJOB_SERVICES_TOKEN_FILE"]]
    start(served, {"services": "fine", "attempt-1": [["exit", 75]], "*": said}, (0, 1), num_hosts=2)
    all_exit(served, 0)
    assert "restart 1 of 1" in served.said(0)
    runs = served.folder / "runs" / "tiny"
    result = [path.read_text().splitlines() for path in sorted((runs / "logs" / "attempt-2").glob("worker-*"))]
    # by the address at which the others called host 0
    assert [lines[0] for lines in result] == 2 * ['RLJOB_SERVICES={"judge": "http://127.0.0.1:4321/judge"}']
    assert len({lines[1] for lines in result}) == 2, "each host has a file of its own"
    assert [path.name for path in (runs / "logs").glob("services-*")] == ["services-1.log"], "both attempts had them"


def test_nothing_of_the_services_outlives_a_killed_host_0(served):
    start(served, {"services": "fine", "*": [["hang"]]}, (0, 1), num_hosts=2)
    (services,) = served.wait_for(lambda: served.pids("fake_services.py\0fine"))
    variables = dict(word.split("=", 1) for word in Path(f"/proc/{services}/environ").read_text().split("\0") if word)
    scratch = Path(variables["RLJOB_SERVICES_TOKEN_FILE"]).parent
    assert scratch.is_dir()
    served.processes[0].kill()
    assert served.codes()[1] == 75, served.everything()
    wait_for(lambda: not scratch.exists())


@pytest.mark.slow
def test_services_that_cannot_be_end_the_launch_on_all_hosts(served):
    start(served, {"services": "refuses", "*": [["hang"]]}, (0, 1), num_hosts=2)
    all_exit(served, 64)
    for host in range(2):
        assert "InvalidJob: service \"judge\": no module 'mine'" in served.said(host)
    assert not (served.folder / "runs" / "tiny" / "logs" / "attempt-1").exists()


@pytest.mark.slow
def test_a_request_on_any_host_while_services_start_ends_the_launch(served):
    start(served, {"services": "silent", "*": [["hang"]]}, (0, 1), num_hosts=2)
    log = served.folder / "runs" / "tiny" / "logs" / "services-1.log"
    served.wait_for(lambda: log.is_file() and log.read_text())
    served.processes[1].send_signal(signal.SIGINT)
    all_exit(served, 130)
    assert not served.pids("fake_services")


def test_every_host_knows_what_services_ask_for_and_nobody_else_reads_it(tmp_path):
    directory = RunDirectory(tmp_path / "tiny")
    directory.prepare()
    plan = plan_of("tiny", groups=[("train", 2, 1)], services=SERVED)
    membership = Membership(1, 2, "127.0.0.1", 1)
    with host_context(membership, plan, directory, tmp_path, TOKEN, forks=False) as context:
        path = context.scratch / TOKEN_FILE
        assert path.read_text() == services_token(TOKEN) and path.stat().st_mode & 0o777 == 0o600
        assert context.services == {}, "until host 0 says where they are"


@pytest.mark.slow
def test_a_host_that_serves_nothing_needs_no_accelerator_for_services(tmp_path):
    group = {"accelerator": {"profile": "amd"}}
    write_wide_job(tmp_path, replicas=2, services=[{**SERVED[0], "workerGroup": group}])
    script = {"services": "fine", "*": []}
    with launching(tmp_path) as hosts:
        port = start(hosts, script, (0,), num_hosts=2, HIP_VISIBLE_DEVICES="0")
        start(hosts, script, (1,), port=port, num_hosts=2, HIP_VISIBLE_DEVICES="")
        all_exit(hosts, 0)
