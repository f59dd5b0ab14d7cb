"""The tables of `rljob plan`."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.planner import plan as planned
from rljob_api.tests.builders import make_job
from rljob_worker.cli.plan.sheets import sheets_of
from rljob_worker.tests.documents import plan_of


def test_models_beside_the_job_are_in_its_plan():
    shipped = {"run": "rljob_worker.services:reward_model", "options": {"path": "m"}}
    plan = plan_of(
        services=[
            {"name": "own", "run": "mine:app", "workerGroup": {"accelerator": {"count": 2}}},
            {"name": "judge", **shipped, "workerGroup": {"replicas": 3}},
            {"name": "scaled", **shipped, "autoscaling": {"minReplicas": 2, "maxReplicas": 4}},
        ]
    )
    (sheet,) = (sheet for sheet in sheets_of(plan, {}) if sheet.title == "Models beside the job")
    assert [(name, copies, item) for name, _, copies, item in sheet.rows] == [
        ("own", "1", "2 x cpu"),
        ("judge", "3", "1 x cpu"),
        ("scaled", "2-4", "1 x cpu"),
    ]
    assert "Models beside the job" not in [sheet.title for sheet in sheets_of(plan_of(), {})]


@pytest.mark.parametrize(
    "profile, title, room",
    [
        ("nvidia", "Memory of a worker of train (not checked: profile nvidia does not say how much there is)", None),
        # 183,359 MiB without a twentieth, a GiB, and 256 MiB of one axis of 8 ranks
        ("nvidia-b200", "Memory of a worker of train", "168.9 GiB"),
        ("cpu", "Memory of a worker of train", None),
    ],
)
def test_memory_that_is_not_checked_is_said_to_be(profile, title, room):
    group = f"workerGroups=[{{name: train, accelerator: {{profile: {profile}, count: 8}}}}]"
    plan = planned(make_job(group, "data.batchSize=8"), shapes={"models/tiny": parse_shape(QWEN3_8B)})
    (sheet,) = (sheet for sheet in sheets_of(plan, {}) if sheet.title.startswith("Memory"))
    assert sheet.title == title
    assert next((row[1] for row in sheet.rows if row[0] == "room"), None) == room


def test_an_elastic_group_shows_its_bounds_and_its_stages():
    groups = [{"name": "train"}, {"name": "rollout", "elastic": {"min": 2, "max": 4}}]
    result = {sheet.title: sheet for sheet in sheets_of(plan_of(workerGroups=groups, rollout={"maxStaleness": 1}), {})}
    assert [row[:4] for row in result["Worker groups"].rows] == [
        ("train (lead)", "1", "1 x 1", "0"),
        ("rollout (elastic)", "2-4", "2-4 x 1", "0"),
    ]
    # the gang only receives what guests make
    schedules = [row[-1] for row in result["Worker groups"].rows]
    assert schedules == ["(rollout), reference, (reward), advantage, update", "rollout, reward"]
    stages = {row[0]: row[2] for row in result["Stages"].rows}
    assert (stages["rollout"], stages["advantage"]) == ("rollout, rows to train", "train")
