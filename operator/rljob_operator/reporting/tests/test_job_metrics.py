"""What dashboards find of the jobs: families, labels and buckets are theirs to rely on."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from rljob_operator.reporting.job_metrics import CAUSES, JobFacts, JobMetrics
from rljob_operator.vocabulary.key import Key

NOW = 10_000.0
JOB, ENDED, GONE = Key("team", "small"), Key("team", "ended"), Key("other", "gone")
SMALL = {"namespace": "team", "rljob": "small"}
FACTS = JobFacts(
    "Running",
    {"Ready": "True", "Progressing": "Unknown"},
    step=3,
    total_steps=10,
    progress_timestamp_seconds=9_990.0,
    restarts=5,
    counted_restarts=2,
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def jobs(registry: CollectorRegistry) -> JobMetrics:
    return JobMetrics(registry, lambda: NOW)


def samples(family: Metric) -> list[tuple[str, dict[str, str], float]]:
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def buckets(registry: CollectorRegistry, name: str) -> list[float]:
    """Upper bounds of a histogram."""
    (family,) = (item for item in registry.collect() if item.name == name)
    return [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]


def test_every_family_of_a_job(jobs: JobMetrics) -> None:
    jobs.show(JOB, FACTS)
    assert [(item.name, item.type, item.documentation, samples(item)) for item in jobs.collect()] == [
        ("rljob_info", "gauge", "Jobs by phase", [("rljob_info", {**SMALL, "phase": "Running"}, 1)]),
        (
            "rljob_condition",
            "gauge",
            "Conditions as they are now",
            [
                ("rljob_condition", {**SMALL, "type": "Ready", "status": "True"}, 1),
                ("rljob_condition", {**SMALL, "type": "Progressing", "status": "Unknown"}, 1),
            ],
        ),
        ("rljob_ended_jobs", "gauge", "Jobs that have ended, by how", []),
        ("rljob_step", "gauge", "The last finished step", [("rljob_step", SMALL, 3)]),
        ("rljob_total_steps", "gauge", "Steps to do", [("rljob_total_steps", SMALL, 10)]),
        (
            "rljob_last_progress_timestamp_seconds",
            "gauge",
            "When the step last grew",
            [("rljob_last_progress_timestamp_seconds", SMALL, 9_990.0)],
        ),
        (
            "rljob_restarts",
            "counter",
            "Attempts that followed a failed one",
            [
                ("rljob_restarts_total", {**SMALL, "counted": "true"}, 2),
                ("rljob_restarts_total", {**SMALL, "counted": "false"}, 3),
            ],
        ),
        ("rljob_generators_wanted", "gauge", "Pods that an elastic group is to have", []),
        ("rljob_generators_ready", "gauge", "Pods of an elastic group that are ready", []),
        ("rljob_generators_lost", "counter", "Pods of an elastic group that ended before their attempt", []),
    ]


def test_what_is_not_known_of_a_job_is_not_shown(jobs: JobMetrics) -> None:
    jobs.show(JOB, JobFacts("Pending"))
    shown = {item.name: samples(item) for item in jobs.collect() if item.samples}
    assert set(shown) == {"rljob_info", "rljob_restarts"}
    assert [value for _, _, value in shown["rljob_restarts"]] == [0, 0]


def test_a_step_of_zero_is_a_step(jobs: JobMetrics) -> None:
    jobs.show(JOB, JobFacts("Running", step=0))
    assert {"rljob_step"} <= {item.name for item in jobs.collect() if item.samples}


def test_jobs_that_ended_are_counted_by_namespace_and_phase(jobs: JobMetrics) -> None:
    jobs.show(JOB, FACTS)
    jobs.show(ENDED, JobFacts("Failed", ended_timestamp_seconds=NOW - 1))
    jobs.show(Key("team", "another"), JobFacts("Failed", ended_timestamp_seconds=0.0))
    jobs.show(GONE, JobFacts("Succeeded", ended_timestamp_seconds=0.0))
    (counted,) = (samples(item) for item in jobs.collect() if item.name == "rljob_ended_jobs")
    assert counted == [
        ("rljob_ended_jobs", {"namespace": "team", "phase": "Failed"}, 2),
        ("rljob_ended_jobs", {"namespace": "other", "phase": "Succeeded"}, 1),
    ]


@pytest.mark.parametrize(("ended_ago", "shown"), [(0.0, True), (3599.0, True), (3600.0, False), (3601.0, False)])
def test_a_job_is_shown_for_an_hour_after_its_end(jobs: JobMetrics, ended_ago: float, shown: bool) -> None:
    jobs.show(ENDED, JobFacts("Failed", ended_timestamp_seconds=NOW - ended_ago))
    (info,) = (samples(item) for item in jobs.collect() if item.name == "rljob_info")
    assert bool(info) is shown


def test_a_job_that_is_forgotten_twice_is_forgotten(jobs: JobMetrics) -> None:
    jobs.show(JOB, FACTS)
    for _ in range(2):
        jobs.forget(JOB)
    assert not [sample for item in jobs.collect() for sample in item.samples]


def test_durations_and_failures_say_what_they_measure(registry: CollectorRegistry, jobs: JobMetrics) -> None:
    documented = {item.name: item.documentation for item in registry.collect()}
    assert (
        documented.items()
        >= {
            "rljob_queue_seconds": "From creation to the first pods",
            "rljob_schedule_seconds": "From an attempt's pods to all of them having nodes",
            "rljob_ready_seconds": "From an attempt's pods to all of them being ready",
            "rljob_duration_seconds": "From the first pods to the end: Succeeded or Failed",
            "rljob_failures": "Failed attempts by cause",
        }.items()
    )


def test_every_cause_has_a_series_from_the_beginning(registry: CollectorRegistry, jobs: JobMetrics) -> None:
    """A series that begins at 1 has no first increase."""
    jobs.failed("Stalled")
    counted = {cause: registry.get_sample_value("rljob_failures_total", {"reason": cause}) for cause in CAUSES}
    assert counted == {cause: float(cause == "Stalled") for cause in CAUSES} and len(CAUSES) == 6


@pytest.mark.parametrize("name", ["rljob_queue_seconds", "rljob_schedule_seconds", "rljob_ready_seconds"])
def test_waits_are_measured_from_a_second_to_a_day(registry: CollectorRegistry, jobs: JobMetrics, name: str) -> None:
    seconds, minutes, hours = [1, 2, 5, 10, 20, 30], [60, 120, 300, 600, 1_800], [3_600, 21_600, 86_400]
    assert buckets(registry, name) == [*seconds, *minutes, *hours, float("inf")]


def test_lives_are_measured_from_a_minute_to_a_month(registry: CollectorRegistry, jobs: JobMetrics) -> None:
    jobs.finished("Succeeded", 60.0)
    minutes, hours = [60, 300, 900, 1_800], [3_600, 7_200, 21_600, 43_200, 86_400]
    days = [259_200, 604_800, 2_592_000]  # 3, 7 and 30
    assert buckets(registry, "rljob_duration_seconds") == [*minutes, *hours, *days, float("inf")]


def test_generators_are_counted_for_jobs_that_have_an_elastic_group(
    registry: CollectorRegistry, jobs: JobMetrics
) -> None:
    jobs.show(JOB, JobFacts("Running", generators=(4, 3, 7)))
    jobs.show(ENDED, JobFacts("Running"))
    families = {family.name: samples(family) for family in jobs.collect() if "generators" in family.name}
    assert families == {
        "rljob_generators_wanted": [("rljob_generators_wanted", SMALL, 4)],
        "rljob_generators_ready": [("rljob_generators_ready", SMALL, 3)],
        "rljob_generators_lost": [("rljob_generators_lost_total", SMALL, 7)],
    }
