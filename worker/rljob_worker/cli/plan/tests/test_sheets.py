"""The tables of `rljob plan`."""

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
