"""Launchers on machines of their own: network namespaces, which see each other through a bridge alone."""

import os

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.supervision.tests.launched import TOKEN, fake_launch, launching, write_wide_job
from rljob_worker.tests.namespaces import inside, namespaces


@pytest.fixture(scope="module")
def machines():
    with namespaces(3) as places:
        yield places


@pytest.mark.slow
def test_a_machine_that_is_unplugged_ends_the_attempt_on_all_with_its_name(tmp_path):
    """Their addresses are those by which machines reach each other."""
    write_wide_job(tmp_path, failurePolicy={"maxRestarts": 5})
    script = {"*": [["say_environment", "RLJOB_LISTEN"], ["say_environment", "GLOO_SOCKET_IFNAME"], ["hang"]]}
    (tmp_path / "ranks").write_text("".join(f"10.213.0.{number}\n" for number in (2, 3, 4)))
    with namespaces(3) as machines, launching(tmp_path) as hosts:
        for number, place in enumerate(machines):
            environment = {**os.environ, "RLJOB_TOKEN": TOKEN}
            command = fake_launch(script, "--rank-file", "ranks")
            hosts.start(number, command, environment, prefix=inside(place.name))
        logs = [tmp_path / "runs/tiny/logs/attempt-1" / f"worker-train-{number}-{number}.log" for number in range(3)]
        said = [f"RLJOB_LISTEN={place.address}\nGLOO_SOCKET_IFNAME=eth0\n" for place in machines]
        hosts.wait_for(lambda: [log.read_text() for log in logs if log.exists()] == said)
        machines[1].unplug()
        assert set(hosts.codes(3 * TEST_TIMEOUT_SECONDS).values()) == {75}, hosts.everything()
        for number in (0, 2):
            assert "host 1 (" in hosts.said(number) and "its launcher is gone" in hosts.said(number)
        assert "host 0 is gone" in hosts.said(1)


def test_a_machine_that_the_rank_file_does_not_name_is_refused(tmp_path, machines):
    write_wide_job(tmp_path, replicas=2)
    (tmp_path / "ranks").write_text("10.213.0.2\n10.213.0.3\n")
    with launching(tmp_path) as hosts:
        command = fake_launch({}, "--rank-file", "ranks")
        hosts.start(2, command, {**os.environ, "RLJOB_TOKEN": TOKEN}, prefix=inside(machines[2].name))
        assert hosts.codes() == {2: 64}
        assert "this machine is not in the rank file, by no name or address: 10.213.0.2, 10.213.0.3" in hosts.said(2)
