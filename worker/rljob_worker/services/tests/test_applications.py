"""From a name in a job to an application of Ray Serve, which nothing serves here."""

import warnings

import huggingface_hub
import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.planning.serving import service_plan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import InvalidJob
from rljob_worker.services.host import application_of
from rljob_worker.services.placement import ModelPlacement

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own, while it is imported
    import ray._private.accelerators as rays
    from ray.serve import Application

HERE = "rljob_worker.services.tests.served_here"
HERE_TOO = "."
"""A directory that is there."""


def made(run, **fields):
    service = ServiceSpec.model_validate({"name": "judge", "run": run, **fields})
    return application_of(service, service_plan(service, DEFAULT))


@pytest.mark.parametrize(
    ("run", "options"),
    [
        (f"{HERE}:app", {}),
        (f"{HERE}:scaled", {"scale": 2.0}),
        ("rljob_worker.services:reward_model", {"path": HERE_TOO}),
        ("rljob_worker.services:judge", {"path": HERE_TOO, "rubric": "?"}),
    ],
)
def test_applications_and_what_makes_them(run, options):
    assert isinstance(made(run, options=options), Application)


def test_a_model_that_is_nowhere_is_refused_before_ray_starts_a_copy(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        InvalidJob, match="options.path: there is no directory no/where, and the Hub did not give it: "
    ) as caught:
        made("rljob_worker.services:reward_model", options={"path": "no/where"})
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_now_is_left_to_the_copies(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("rljob_worker.services.applications.hf_hub_download", unreachable)
    assert isinstance(made("rljob_worker.services:reward_model", options={"path": "no/where"}), Application)
    with pytest.raises(InvalidJob, match="no route to host"):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        made("rljob_worker.services:reward_model", options={"path": "no/where"})


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        (f"{HERE}:nothing", {}, "is a int, not an application of Ray Serve: that is what `YourDeployment.bind"),
        (f"{HERE}:Lengths", {}, "Lengths"),
        (f"{HERE}:app", {"scale": 2.0}, "is not a function, and so takes no options; leave them out"),
        (f"{HERE}:absent", {}, "has no 'absent'; it has"),
        (f"{HERE}:fails", {}, "raised ValueError: no weights here"),
        ("no_such_module:app", {}, "no module 'no_such_module'"),
    ],
)
def test_what_is_no_application_is_named(run, options, words):
    with pytest.raises(InvalidJob) as caught:
        made(run, options=options)
    assert str(caught.value).startswith('service "judge": ') and words in str(caught.value)


def test_a_shipped_model_is_told_where_it_lies_and_ray_what_to_give_it(answering):
    group = {"accelerator": {"profile": "nvidia-h100", "count": 2}}
    made("rljob_worker.services:reward_model", options={"path": HERE_TOO}, workerGroup=group)
    assert answering.given == ("reward_model", {"path": HERE_TOO}, ModelPlacement("cuda", 2, "nvidia-h100"))
    assert answering.announced == {"num_replicas": 1, "ray_actor_options": {"num_gpus": 2}}


def test_on_cpus_ray_gives_a_copy_what_it_gives_to_any(answering):
    made("rljob_worker.services:judge", options={"path": HERE_TOO, "rubric": "?"})
    assert answering.given == ("judge", {"path": HERE_TOO, "rubric": "?"}, ModelPlacement())
    assert answering.announced == {"num_replicas": 1}


def test_an_application_of_the_users_own_says_itself_what_it_asks_ray_for():
    """It takes nothing but its options."""
    group = {"accelerator": {"profile": "nvidia-h100", "count": 2}}
    assert isinstance(made(f"{HERE}:scaled", options={"scale": 2.0}, workerGroup=group), Application)


def test_ray_has_the_names_by_which_profiles_call_its_accelerators():
    named = {profile.name: profile.ray_resource for profile in DEFAULT.values() if profile.ray_resource}
    assert set(named.values()) <= rays.get_all_accelerator_resource_names()
    for name in ("huawei-npu", "gaudi"):
        ours = rays.get_accelerator_manager_for_resource(named[name]).get_visible_accelerator_ids_env_var()
        assert ours == DEFAULT[name].visible_devices_env, "Ray hands out what the supervisor has made visible"
