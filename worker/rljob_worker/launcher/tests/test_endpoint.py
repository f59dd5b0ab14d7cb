"""The launcher's health, progress and metrics endpoints."""

import contextlib
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rljob_worker.errors import InvalidJob
from rljob_worker.launcher.endpoint import Endpoint, PodStateCollector
from rljob_worker.launcher.pod_state import PodState
from rljob_worker.launcher.tests.test_launch import get


def test_a_failed_worker_makes_the_pod_unhealthy_and_the_first_ailment_stays():
    pod_state = PodState(attempt=2)
    with contextlib.closing(Endpoint(pod_state, port=0)) as endpoint:
        assert get(endpoint.port, "/healthz") == (200, "ok\n")
        pod_state.fail("worker train-0-1 ended with exit code 65")
        pod_state.fail("worker train-0-0 ended with exit code 75")
        assert get(endpoint.port, "/healthz") == (503, "worker train-0-1 ended with exit code 65\n")


def test_a_port_that_is_taken_is_named_with_what_to_do():
    with contextlib.closing(Endpoint(PodState(attempt=1), port=0)) as first, pytest.raises(InvalidJob) as error:
        Endpoint(PodState(attempt=1), port=first.port)
    assert f"the launcher's metrics cannot listen on port {first.port}: " in str(error.value)
    assert "set RLJOB_METRICS_PORT to a free port" in str(error.value)


def test_progress_is_there_before_the_lead_says_anything():
    with contextlib.closing(Endpoint(PodState(attempt=2), port=0)) as endpoint:
        assert json.loads(get(endpoint.port, "/progress")[1]) == {"phase": "Starting", "attempt": 2, "step": 0}


def test_a_line_that_is_not_json_loses_only_itself():
    pod_state = PodState(attempt=1)
    pod_state.record(0, b'{"metrics": {"step": 1}}')
    pod_state.record(0, b'{"metrics": {"ste')
    pod_state.record(0, b'{"metrics": {"kl/old": NaN}}')
    values = pod_state.metrics()[0]
    assert values["step"] == 1 and math.isnan(values["kl/old"])


def page(pod_state):
    registry = CollectorRegistry()
    registry.register(PodStateCollector(pod_state))
    return generate_latest(registry).decode()


def test_the_pods_own_state_is_there_without_any_worker():
    pod_state = PodState(attempt=2, num_workers=4)
    pod_state.record(0, b'{"progress": {"step": 7, "totalSteps": 10, "checkpointStep": null}}')
    lines = [line for line in page(pod_state).splitlines() if not line.startswith("#")]
    assert lines == ["rljob_workers_alive 4.0", "rljob_step 7.0", "rljob_total_steps 10.0", "rljob_attempt 2.0"]


@given(st.dictionaries(st.text(min_size=1), st.floats(), max_size=8))
@example({"a/b": 1.0, "a_b": 2.0})
@example({"time/x_seconds": 1.0, "stage/seconds": 2.0})
@example({"step": 1.0, "workers/alive": 2.0})
def test_whatever_workers_send_the_page_says_nothing_twice(values):
    pod_state = PodState(attempt=1)
    for rank in (0, 1):
        pod_state.record(rank, json.dumps({"metrics": values}).encode())
    samples = [sample for family in text_string_to_metric_families(page(pod_state)) for sample in family.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(keys) == len(set(keys))
