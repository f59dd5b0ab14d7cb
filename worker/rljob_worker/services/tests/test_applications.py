"""From a name in a job to an application of Ray Serve, which nothing serves here."""

import warnings

import pytest

from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import InvalidJob
from rljob_worker.services.host import application_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own, while it is imported
    from ray.serve import Application

HERE = "rljob_worker.services.tests.served_here"


def service(run, **fields):
    return ServiceSpec.model_validate({"name": "judge", "run": run, **fields})


@pytest.mark.parametrize(
    ("run", "options"),
    [
        (f"{HERE}:app", {}),
        (f"{HERE}:scaled", {"scale": 2.0}),
        ("rljob_worker.services:reward_model", {"path": "m"}),
        ("rljob_worker.services:judge", {"path": "m", "rubric": "?"}),
    ],
)
def test_applications_and_what_makes_them(run, options):
    assert isinstance(application_of(service(run, options=options)), Application)


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        (f"{HERE}:nothing", {}, "is a int, not an application of Ray Serve: that is what `YourDeployment.bind"),
        (f"{HERE}:Lengths", {}, "Lengths"),
        (f"{HERE}:app", {"scale": 2.0}, "is no function, and so takes no options; leave them out"),
        (f"{HERE}:absent", {}, "has no 'absent'; it has"),
        (f"{HERE}:fails", {}, "raised ValueError: no weights here"),
        ("no_such_module:app", {}, "no module 'no_such_module'"),
    ],
)
def test_what_is_no_application_is_named(run, options, words):
    with pytest.raises(InvalidJob) as caught:
        application_of(service(run, options=options))
    assert str(caught.value).startswith('service "judge": ') and words in str(caught.value)
