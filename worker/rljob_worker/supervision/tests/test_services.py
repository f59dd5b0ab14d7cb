"""A supervisor and the services of its job: who waits for whom, what ends with what."""

import signal
from pathlib import Path

import pytest

from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.local.services import ServicesPlace, last_lines, most_start_seconds, services_environment
from rljob_worker.supervision.tests import fake_services
from rljob_worker.supervision.tests.test_supervisor import rest_of, run, supervisor
from rljob_worker.tests.documents import plan_of
from rljob_worker.tests.waiting import is_gone, pid_in, wait_for

SERVED = plan_of(services=[{"name": "judge", "run": "mine:app"}])


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "tiny"


def services_of(mark):
    """Process ids of services that run for `mark`, a word of their command line."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if fake_services.__file__ in words and mark in words:
                result.append(int(entry.name))
    return result


def test_workers_find_the_services_and_attempts_share_them(run_dir):
    said = [["say_environment", "RLJOB_SERVICES"], ["say_environment", "RLJOB_SERVICES_TOKEN_FILE"]]
    script = {"attempt-1": [*said, ["exit", 75]], "*": said}
    code, output = run(run_dir, script=script, services="fine", maxRestarts=1)
    assert code == 0, output
    first, second = ((run_dir / "logs" / f"attempt-{n}" / "worker-train-0-0.log").read_text() for n in (1, 2))
    assert first == second and first.startswith('RLJOB_SERVICES={"judge": "http://127.0.0.1:4321/judge"}\n')
    assert [path.name for path in (run_dir / "logs").glob("services-*")] == ["services-1.log"]
    assert "  services: fine, in 0.1 s" in output
    token = Path(first.splitlines()[1].partition("=")[2])
    assert not token.exists()


def test_a_job_without_services_starts_none(run_dir):
    code, _ = run(run_dir, script={"*": [["say_environment", "RLJOB_SERVICES"]]})
    log = (run_dir / "logs" / "attempt-1" / "worker-train-0-0.log").read_text()
    assert code == 0 and log == "RLJOB_SERVICES=None\n"
    assert not list((run_dir / "logs").glob("services-*"))


def test_an_application_that_is_not_there_ends_the_run_with_its_words(run_dir):
    code, output = run(run_dir, services="refuses", maxRestarts=3)
    assert code == 64
    assert "services: InvalidJob: service \"judge\": no module 'mine'" in output and "restarts 0" in output
    assert not (run_dir / "logs" / "attempt-1").exists()  # no gang was started


def test_services_that_end_before_they_are_healthy_are_tried_again_within_bounds(run_dir):
    code, output = run(run_dir, services="breaks", maxRestarts=1)
    assert code == 75
    assert "services: " in output and "Traceback: | ValueError: no head" in output and "restarts 1" in output
    assert len(list((run_dir / "logs").glob("services-*"))) == 2


def test_services_that_end_are_started_again_at_the_same_port_and_the_gang_goes_on(run_dir):
    end, ready, go_on = (run_dir.parent / name for name in ("end", "ready", "go-on"))
    script = {"*": [["pid", str(ready)], ["wait_file", str(go_on)]]}
    with supervisor(run_dir, script=script, services=str(end), maxRestarts=1) as process:
        pid = pid_in(ready)
        end.touch()
        while not (line := process.said.readline()).startswith("services ended: "):
            assert line
        wait_for(lambda: (run_dir / "logs" / "services-2.log").is_file() and services_of(str(end)))
        wait_for(lambda: "4321" in (run_dir / "logs" / "services-2.log").read_text())
        assert not is_gone(pid)
        go_on.touch()
        output = rest_of(process)
    assert process.returncode == 0 and "restarts 0" in output, output
    assert services_of(str(end)) == []


def test_a_request_while_services_start_ends_the_run(run_dir):
    with supervisor(run_dir, services="silent", maxRestarts=3) as process:
        log = run_dir / "logs" / "services-1.log"
        wait_for(lambda: log.is_file() and log.read_text())
        process.send_signal(signal.SIGINT)
        output = rest_of(process)
        assert process.returncode == 130, output
    assert "stopping now: no step has ended" in output


def test_nothing_of_the_services_outlives_a_killed_supervisor(run_dir):
    ready, never = run_dir.parent / "ready", run_dir.parent / "never"
    with supervisor(run_dir, script={"*": [["pid", str(ready)], ["hang"]]}, services=str(never)) as process:
        pid_in(ready)
        (services,) = services_of(str(never))
        process.kill()
        wait_for(lambda: is_gone(services))


def place_of(plan):
    folders = Path("/r/plan.json"), Path("/r/logs"), Path("/tmp/x"), Path("/project")
    return ServicesPlace(plan, *folders, "abc", 9, hosts_of(plan), "s3cret")


def test_services_are_told_nothing_of_another_cluster_or_another_pod():
    base = {"HOME": "/home/me", "RAY_ADDRESS": "10.0.0.1:6379", "RLJOB_GROUP": "train", "HF_TOKEN": "mine"}
    result = services_environment(base, place_of(SERVED), Path("/tmp/x/token"), Path("/tmp/x/words"))
    assert (result["HOME"], result["HF_TOKEN"], result["RLJOB_FAMILY"]) == ("/home/me", "mine", "abc")
    assert not {"RAY_ADDRESS", "RLJOB_GROUP"} & result.keys()
    assert (result["RLJOB_CODE"], result["RLJOB_LISTEN"]) == ("/project", "127.0.0.1")


def test_services_see_the_accelerators_that_are_theirs():
    group = {"accelerator": {"profile": "nvidia", "count": 2}}
    plan = plan_of(
        workerGroups=[{"name": "train", "accelerator": {"profile": "nvidia", "count": 4}}],
        services=[{"name": "judge", "run": "mine:app", "workerGroup": group}],
    )
    base = {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
    result = services_environment(base, place_of(plan), Path("/tmp/x/token"), Path("/tmp/x/words"))
    assert result["CUDA_VISIBLE_DEVICES"] == "3,2"


@pytest.mark.parametrize(
    ("services", "restarts", "seconds"),
    [
        ([], 3, 0.0),
        # each of four starts: Ray's 300, and the longer of both
        ([20.0, 600.0], 3, 4 * (300 + 600)),
        ([20.0], 0, 300 + 20),
    ],
)
def test_others_wait_as_long_as_services_may_take(services, restarts, seconds):
    specs = [{"name": f"s{i}", "run": "mine:app", "healthSeconds": health} for i, health in enumerate(services)]
    assert most_start_seconds(plan_of(services=specs, failurePolicy={"maxRestarts": restarts})) == seconds


def test_the_end_of_a_log_is_one_line(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("a\n\n b \nc\n")
    assert last_lines(log, 2) == "b | c"
    log.write_text("\n")
    assert last_lines(log) == "no last words"
