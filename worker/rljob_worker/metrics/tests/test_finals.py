"""What runs came to at their end."""

from rljob_worker.metrics.finals import differing, final_figures


def test_figures_are_means_of_the_last_ten_steps_and_of_the_last_validation():
    records = [{"step": step, "reward/mean": float(step)} for step in range(1, 13)]
    records[4]["validation/accuracy"] = 0.25
    records[8]["validation/accuracy"] = 0.5
    # steps 3 to 12: (3 + 12) / 2
    assert final_figures(records) == {"reward/mean": 7.5, "validation/accuracy": 0.5}


def test_a_run_without_steps_has_no_figures():
    assert final_figures([]) == {}


def test_fields_that_a_job_lacks_differ():
    jobs = [
        {"seed": "7", "stop.steps": "3"},
        {"seed": "7", "stop.steps": "4"},
        {"seed": "7", "stop.steps": "3", "a": "1"},
    ]
    assert differing(jobs) == ["stop.steps", "a"]
    assert differing(jobs[:1]) == []
