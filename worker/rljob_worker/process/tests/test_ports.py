"""Fixed ports that are taken, and ports that the system chooses."""

import os
import socket
import subprocess
import sys

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.launcher.endpoint import Endpoint
from rljob_worker.launcher.pod_state import PodState
from rljob_worker.process.ports import check_free


@pytest.fixture
def taken():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_with_its_variable(taken):
    with pytest.raises(InvalidJob, match=f"data buffer cannot listen on port {taken}: Address already in use"):
        check_free("the data buffer", "127.0.0.1", taken, "X")


def test_a_port_that_the_system_chooses_is_never_taken():
    check_free("the data buffer", "127.0.0.1", 0, "X")


def test_the_launchers_metrics_port_is_named_too(taken):
    with pytest.raises(InvalidJob, match=f"port {taken}.*RLJOB_METRICS_PORT"):
        Endpoint(PodState(1), taken)


def test_a_free_port_is_free_again_at_once():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"from rljob_worker.process.ports import check_free; check_free('x', '127.0.0.1', {port}, 'X')"
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ))
