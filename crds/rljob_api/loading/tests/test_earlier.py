import pytest

from rljob_api.loading.earlier import by_todays_names
from rljob_api.loading.structure import check_structure
from rljob_api.tests.builders import make_job


@pytest.mark.parametrize(("written", "means"), [(True, "Full"), (False, "None")])
def test_a_field_that_has_moved_is_read_where_it_is_now(written, means):
    job = make_job().to_json()
    training = {**job["spec"].get("training", {}), "activationCheckpointing": written, "learningRate": 0.5}
    training.pop("memory", None)
    found, problems = check_structure(by_todays_names({**job, "spec": {**job["spec"], "training": training}}))
    assert problems == [] and found is not None
    assert found.spec.training.memory.activation_checkpointing == means
    assert found.spec.training.learning_rate == 0.5


@pytest.mark.parametrize("document", [None, "text", {}, {"spec": 3}, {"spec": {"training": None}}])
def test_what_is_no_job_stays_what_it_is(document):
    assert by_todays_names(document) is document


def test_todays_jobs_stay_as_they_are():
    job = make_job().to_json()
    assert by_todays_names(job) is job
