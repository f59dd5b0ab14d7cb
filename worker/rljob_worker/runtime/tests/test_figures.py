"""What a worker measures between two reports, with a clock that tests turn."""

import pytest

from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import Scalar, maximum, mean, total
from rljob_worker.runtime.figures import (
    PRODUCTIVE,
    StepFigures,
    add_up_times,
    data_metrics,
    groups_in_flight,
    idle_role,
    idle_seconds,
    productive_seconds,
)
from rljob_worker.tests.documents import plan_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def figures(clock):
    return StepFigures(clock)


def values(report):
    return {name: scalar.value for name, scalar in report.metrics.items()}


def test_a_step_lasts_from_one_report_to_the_next(figures, clock):
    clock.now += 50
    figures.begin()
    clock.now += 4
    figures.add({"time/forward_seconds": mean(1.0)})
    # 1 of 4 seconds is work
    assert values(figures.take(is_step=True)) == {
        "time/forward_seconds": 1.0, "time/step_seconds": 4.0, "time/overhead_fraction": 0.75,
    }  # fmt: skip
    clock.now += 2
    assert values(figures.take(is_step=True)) == {"time/step_seconds": 2.0, "time/overhead_fraction": 1.0}


def test_a_step_begins_when_the_figures_do(figures, clock):
    clock.now += 3
    assert values(figures.take(is_step=True))["time/step_seconds"] == 3.0


def test_time_passes_by_itself():
    assert values(StepFigures().take(is_step=True))["time/step_seconds"] > 0


def test_more_work_than_time_is_no_overhead(figures, clock):
    clock.now += 1
    figures.add({"time/generation_seconds": mean(1.5)})
    assert values(figures.take(is_step=True))["time/overhead_fraction"] == 0.0


def test_what_is_no_step_has_no_length(figures, clock):
    clock.now += 1
    figures.add({"validation/accuracy": mean(1.0, 2.0)}, [{"row": 1}])
    assert figures.take(is_step=False) == StepReport({"validation/accuracy": mean(1.0, 2.0)}, [{"row": 1}])
    clock.now += 1
    assert values(figures.take(is_step=True))["time/step_seconds"] == 2.0


def test_a_report_is_about_what_came_since_the_last(figures):
    figures.add({"a": total(1)}, [{"row": 1}])
    figures.add({"a": total(2)}, [{"row": 2}])
    first = figures.take(is_step=False)
    figures.add({"a": total(4)})
    assert values(first) == {"a": 3} and first.samples == [{"row": 1}, {"row": 2}]
    assert figures.take(is_step=False) == StepReport({"a": total(4)}, [])


def test_a_block_is_timed_and_may_be_outside_of_steps(figures, clock):
    clock.now += 1
    with figures.timed("a"):
        clock.now += 2
    with figures.outside_of_steps(), figures.timed("b"):
        clock.now += 8
    result = values(figures.take(is_step=True))
    assert (result["time/a_seconds"], result["time/b_seconds"], result["time/step_seconds"]) == (2.0, 8.0, 3.0)


def test_times_of_one_name_add_up(figures):
    figures.add({"time/a_seconds": mean(1.0), "b": mean(1.0), "time/most": maximum(1.0)})
    figures.add({"time/a_seconds": mean(2.0), "b": mean(2.0), "time/most": maximum(2.0)})
    # b is a mean over two calls; sums of maxima mean nothing, and travel all the same
    assert figures.take(is_step=False).metrics == {
        "time/a_seconds": mean(3.0), "b": Scalar("mean", 3.0, 2.0, 2.0), "time/most": Scalar("maximum", 3.0, 2.0, 2.0),
    }  # fmt: skip


def test_only_times_are_added_up():
    scalars = {"time/a": mean(4.0, 2.0), "time/b": total(4.0), "a": mean(4.0, 2.0)}
    assert add_up_times(scalars) == {"time/a": mean(4.0), "time/b": total(4.0), "a": mean(4.0, 2.0)}


def test_the_work_itself_is_five_things():
    assert productive_seconds({name: mean(1.0) for name in (*PRODUCTIVE, "time/rollout_seconds")}) == 5.0
    for name in ("generation", "forward", "backward", "optimizer", "collectives"):
        assert productive_seconds({f"time/{name}_seconds": mean(0.5)}) == 0.5


def test_figures_of_the_data_plane_are_named_by_edge():
    assert data_metrics({"put_bytes/a->b": 7, "get_seconds/a->b": 0.5, "get_rows/a->b": 3}) == {
        "data/bytes_a->b": total(7), "data/get_seconds/a->b": mean(0.5), "data/get_rows/a->b": total(3),
    }  # fmt: skip


WAITS = {
    "time/learn_wait_seconds": mean(0.5),
    "time/reference_wait_seconds": mean(0.25),
    "time/verdict_wait_seconds": mean(0.125),
    "time/weights_wait_seconds": mean(2.0),
    "time/weights_room_wait_seconds": mean(4.0),
    "data/room_seconds/rollout->learn": mean(8.0),
    "data/room_seconds/rollout->reference": mean(16.0),
}
OTHERS = {
    "time/checkpoint_wait_seconds": mean(32.0),  # part of no step
    "time/weight_sync_seconds": mean(32.0),
    "time/weights_load_seconds": mean(32.0),
    "time/learn_put_seconds": mean(32.0),
    "data/get_seconds/rollout->learn": mean(32.0),
}


def test_idle_seconds_are_those_of_all_waits_by_what_they_wait_for():
    """0.5 + 0.25 s for rows, 8 + 16 s for room."""
    assert idle_seconds(WAITS | OTHERS) == {
        "rows": 0.75, "verdict": 0.125, "room": 24.0, "weights": 2.0, "weights_room": 4.0,
    }  # fmt: skip
    assert set(idle_seconds(OTHERS).values()) == {0.0}


def test_a_worker_with_a_role_reports_idle_seconds_and_their_share(clock):
    """0.5 s for rows in two calls and 1.5 s for weights: 2 of 8 seconds."""
    figures = StepFigures(clock, "trainers")
    clock.now += 8
    for _ in range(2):
        figures.add({"time/learn_wait_seconds": mean(0.25)})
    figures.add({"time/weights_wait_seconds": mean(1.5)})
    result = values(figures.take(is_step=True))
    idle = {name.removeprefix("time/trainers_idle_"): value for name, value in result.items() if "idle" in name}
    assert idle == {
        "seconds": 2.0, "fraction": 0.25, "seconds/rows": 0.5, "seconds/verdict": 0.0, "seconds/room": 0.0,
        "seconds/weights": 1.5, "seconds/weights_room": 0.0,
    }  # fmt: skip
    figures.add({"time/learn_wait_seconds": mean(0.25)})
    assert values(figures.take(is_step=False)) == {"time/learn_wait_seconds": 0.25}


def test_a_worker_without_a_role_reports_what_it_always_did(figures, clock):
    clock.now += 4
    figures.add({"time/learn_wait_seconds": mean(1.0), "data/room_seconds/rollout->learn": mean(1.0)})
    assert values(figures.take(is_step=True)) == {
        "time/learn_wait_seconds": 1.0, "time/step_seconds": 4.0, "time/overhead_fraction": 1.0,
    }  # fmt: skip


def test_groups_in_flight_are_those_of_the_steps_after_the_newest_weights():
    """Steps 3, 4 and 5 of four groups each."""
    assert groups_in_flight(5, 2, 4) == {"rollout/groups_in_flight": maximum(12.0)}


def roles_of(plan):
    return {group.name: idle_role(plan, group.name) for group in plan.groups}


def test_workers_have_a_role_only_where_groups_share_the_work():
    apart = plan_of(groups=[("train", 1, 2), ("rollout", 2, 1)])
    assert roles_of(apart) == {"train": "trainers", "rollout": "generators"}
    assert roles_of(plan_of(groups=[("train", 2, 1)])) == {"train": None}


def test_a_group_that_only_scores_has_no_role():
    """The reference in a group of its own, in a disaggregated job and in one that is not."""
    plan = plan_of(groups=[("train", 1, 2), ("rollout", 2, 1)])
    scores = plan.model_copy(update={"groups": (*plan.groups, plan.groups[0].model_copy(update={"name": "scores"}))})
    assert roles_of(scores) == {"train": "trainers", "rollout": "generators", "scores": None}
