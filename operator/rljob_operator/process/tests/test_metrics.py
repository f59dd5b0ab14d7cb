"""Prometheus metrics: names that dashboards use, labels without pods, series that go with their job."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rljob_operator.cluster.kinds import POD
from rljob_operator.process.metrics import Metrics
from rljob_operator.reporting.job_metrics import JobFacts, JobMetrics
from rljob_operator.vocabulary.key import Key

JOB = Key("team-a", "job")


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


def test_a_job_s_series_follow_it_and_go_with_it() -> None:
    metrics = Metrics()
    job = {"namespace": "team-a", "rljob": "job"}
    metrics.jobs.show(JOB, JobFacts("Starting", {"Ready": "False"}))
    facts = JobFacts("Running", {"Ready": "True"}, step=7, total_steps=100, restarts=3, counted_restarts=2)
    metrics.jobs.show(JOB, facts)
    assert value(metrics, "rljob_info", **job, phase="Running") == 1
    assert value(metrics, "rljob_info", **job, phase="Starting") is None, "a job has one phase"
    assert value(metrics, "rljob_condition", **job, type="Ready", status="True") == 1
    assert value(metrics, "rljob_condition", **job, type="Ready", status="False") is None
    assert value(metrics, "rljob_step", **job) == 7
    assert value(metrics, "rljob_last_progress_timestamp_seconds", **job) is None, "not known yet"
    assert value(metrics, "rljob_restarts_total", **job, counted="true") == 2
    assert value(metrics, "rljob_restarts_total", **job, counted="false") == 1
    metrics.jobs.forget(JOB)
    assert not [labels for _, labels in samples(metrics) if ("rljob", "job") in labels]


def test_a_job_that_ended_is_one_of_a_number_after_an_hour() -> None:
    registry, now = CollectorRegistry(), [10_000.0]
    jobs = JobMetrics(registry, lambda: now[0])
    for number in range(3):
        jobs.show(
            Key("team-a", f"job-{number}"), JobFacts("Failed", {"Failed": "True"}, ended_timestamp_seconds=10_000.0)
        )
    jobs.show(JOB, JobFacts("Running"))
    count = {"namespace": "team-a", "phase": "Failed"}
    info = {"namespace": "team-a", "rljob": "job-0", "phase": "Failed"}
    now[0] += 3599
    assert (
        registry.get_sample_value("rljob_info", info) == 1 and registry.get_sample_value("rljob_ended_jobs", count) == 3
    )
    now[0] += 1
    assert registry.get_sample_value("rljob_info", info) is None
    assert registry.get_sample_value("rljob_ended_jobs", count) == 3
    assert b"job-0" not in generate_latest(registry) and b'rljob="job"' in generate_latest(registry)


def test_failures_are_counted_by_cause_from_zero() -> None:
    metrics = Metrics()
    assert value(metrics, "rljob_failures_total", reason="Stalled") == 0
    metrics.jobs.failed("Stalled")
    assert value(metrics, "rljob_failures_total", reason="Stalled") == 1


def test_exceptions_of_a_part_are_counted_from_zero() -> None:
    metrics = Metrics()
    metrics.begun("events")
    assert value(metrics, "rljob_operator_part_failures_total", part="events") == 0
    metrics.failed("events")
    assert value(metrics, "rljob_operator_part_failures_total", part="events") == 1


def test_durations_are_histograms() -> None:
    metrics = Metrics()
    metrics.jobs.queued(3)
    metrics.jobs.scheduled(4)
    metrics.jobs.ready(5)
    metrics.jobs.finished("Succeeded", 3600)
    assert value(metrics, "rljob_queue_seconds_sum") == 3
    assert value(metrics, "rljob_schedule_seconds_sum") == 4
    assert value(metrics, "rljob_ready_seconds_bucket", le="5.0") == 1
    assert value(metrics, "rljob_duration_seconds_sum", result="Succeeded") == 3600


def test_the_operator_s_own() -> None:
    metrics = Metrics()
    depth = 3
    metrics.follow(lambda: depth, lambda: 1.5, lambda: 0.25)
    metrics.reconciled("Ok", 0.01)
    metrics.requested("get", "200")
    metrics.requested("create", "error")
    metrics.watched(POD)
    metrics.missed(2)
    metrics.led(True)
    assert value(metrics, "rljob_operator_reconcile_seconds_count", result="Ok") == 1
    assert value(metrics, "rljob_operator_queue_depth") == 3
    assert value(metrics, "rljob_operator_queue_oldest_seconds") == 1.5
    assert value(metrics, "rljob_operator_loop_lag_seconds") == 0.25
    assert value(metrics, "rljob_operator_api_requests_total", verb="create", code="error") == 1
    assert value(metrics, "rljob_operator_missed_events_total") == 2
    assert value(metrics, "rljob_operator_leader") == 1
    assert (value(metrics, "rljob_operator_watch_last_event_timestamp_seconds", resource="pods") or 0) > 1.7e9
    metrics.led(False)
    assert value(metrics, "rljob_operator_leader") == 0
