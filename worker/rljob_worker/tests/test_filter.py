"""A stage that takes rows out of a step, in whole jobs."""

import pytest

from rljob_worker.tests.jobs import make_job, run_job

FILTERS = """
import numpy as np

def first(batch, context, *, groups):
    return {"kept": batch.group_ids < groups}

def half_of_each(batch, context):
    return {"kept": batch.row_ids % 2 == 0}
"""


def filtered_job(tiny, name, batch_size, filtered=None):
    """One step on prompts in the order of the data."""
    job = make_job(tiny, name, stop={"steps": 1})
    job["spec"]["data"] |= {"shuffle": False, "batchSize": batch_size}
    del job["spec"]["data"]["validation"]
    stages = [
        {"name": "rollout", "run": "Rollout"},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["keep" if filtered else "reward"]},
        {"name": "update", "run": "UpdatePolicy", "after": ["advantage"], "balance": "Tokens"},
    ]
    if filtered:
        own = {"name": "keep", "after": ["reward"], "reads": ["rewards"], "writes": ["kept"]}
        stages.insert(2, own | filtered)
    job["spec"]["dag"] = {"stages": stages}
    return job


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "filters.py").write_text(FILTERS)
    return tmp_path


@pytest.mark.slow
def test_a_step_of_which_half_is_kept_is_the_step_of_that_half(tiny, folder):
    first = {"run": "filters:first", "options": {"groups": 2}}
    filtered = run_job(filtered_job(tiny, "filtered", 4, first), folder)
    alone = run_job(filtered_job(tiny, "alone", 2), folder)
    assert (filtered.code, alone.code) == (0, 0), filtered.output + filtered.logs
    (mine,), (half,) = filtered.metrics, alone.metrics
    assert mine["stage/keep/kept"] == 0.5
    assert mine["update/gradient_norm"] > 0
    for name in ("update/gradient_norm", "loss/policy", "policy/entropy", "reward/zero_variance_groups"):
        assert mine[name] == pytest.approx(half[name], rel=1e-4, abs=1e-7), name


@pytest.mark.slow
def test_a_filter_that_leaves_nothing_or_tears_groups_ends_the_job_in_words(tiny, folder):
    nothing = run_job(filtered_job(tiny, "nothing", 4, {"run": "filters:first", "options": {"groups": 0}}), folder)
    assert nothing.code == 65
    assert "step 1: stage keep kept no row, so there is nothing to learn from" in nothing.output
    torn = run_job(filtered_job(tiny, "torn", 4, {"run": "filters:half_of_each"}), folder)
    assert torn.code == 65
    assert "stage keep kept 2 of the 4 rows of group" in torn.output
