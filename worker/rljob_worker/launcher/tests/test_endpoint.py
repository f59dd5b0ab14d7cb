import contextlib
import json
import math

from rljob_worker.launcher.board import Board
from rljob_worker.launcher.endpoint import Endpoint
from rljob_worker.launcher.tests.test_launch import get


def test_a_failed_worker_makes_the_pod_unhealthy_and_the_first_ailment_stays():
    board = Board(attempt=2)
    with contextlib.closing(Endpoint(board, port=0)) as endpoint:
        assert get(endpoint.port, "/healthz") == (200, "ok\n")
        board.fail("worker train-0-1 ended with exit code 65")
        board.fail("worker train-0-0 ended with exit code 75")
        assert get(endpoint.port, "/healthz") == (503, "worker train-0-1 ended with exit code 65\n")


def test_progress_is_there_before_the_lead_says_anything():
    with contextlib.closing(Endpoint(Board(attempt=2), port=0)) as endpoint:
        assert json.loads(get(endpoint.port, "/progress")[1]) == {"phase": "Starting", "attempt": 2, "step": 0}


def test_a_line_that_is_not_json_loses_only_itself():
    board = Board(attempt=1)
    board.post(0, b'{"metrics": {"step": 1}}')
    board.post(0, b'{"metrics": {"ste')
    board.post(0, b'{"metrics": {"kl/old": NaN}}')
    values = board.metrics()[0]
    assert values["step"] == 1 and math.isnan(values["kl/old"])
