"""What the operator writes into a RayService, read by Ray Serve itself; nothing is served."""

import warnings
from pathlib import Path

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.catalogue.services import RAY_APPLICATION, RAY_GATE, RAY_TIMEOUTS, RAY_VERSION
from rljob_api.planning.serving import service_plan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import InvalidJob
from rljob_worker.services.placement import ModelPlacement

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own, while it is imported
    import ray
    import ray.serve._private.constants as constants
    from ray.serve import Application
    from ray.serve.schema import ServeDeploySchema

    from rljob_worker.services import gate
    from rljob_worker.services.ray_service import application

HERE = "rljob_worker.services.tests.served_here"
MODEL = str(Path(__file__).parent)
"""A folder that is there; nothing is loaded from it."""


def arguments(run, **fields):
    """As the operator writes them."""
    service = ServiceSpec.model_validate({"name": "judge", "run": run, **fields})
    return {"service": service.to_json(), "plan": service_plan(service, DEFAULT).to_json()}


@pytest.mark.parametrize(
    "given",
    [
        arguments(f"{HERE}:app"),
        arguments(f"{HERE}:scaled", options={"scale": 2.0}),
        arguments("rljob_worker.services:reward_model", options={"path": MODEL}, autoscaling={"maxReplicas": 3}),
    ],
)
def test_applications_of_a_ray_service_are_those_of_a_pod(given):
    assert isinstance(application(given), Application)


def test_a_copy_of_a_ray_service_lies_where_the_operator_says(answering):
    group = {"accelerator": {"profile": "huawei-npu", "count": 1}}
    application(arguments("rljob_worker.services:embedding", options={"path": MODEL}, workerGroup=group))
    assert answering.given == ("embedding", {"path": MODEL}, ModelPlacement("npu", 1, "huawei-npu"))
    assert answering.announced["ray_actor_options"] == {"resources": {"NPU": 1}}


def test_what_is_no_application_is_named():
    with pytest.raises(InvalidJob, match='service "judge": .* has no .absent.'):
        application(arguments(f"{HERE}:absent"))


def test_ray_serve_takes_what_it_is_told():
    judge = {"import_path": RAY_APPLICATION, "args": arguments(f"{HERE}:app")}
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": 8816},
        "logging_config": {"enable_access_log": False},
        "applications": [
            {"name": "judge", "route_prefix": "/judge", **judge},
        ],
    }
    (result,) = ServeDeploySchema.model_validate(config).applications
    assert result.args == arguments(f"{HERE}:app")


def test_the_operator_names_what_is_here():
    assert f"{application.__module__}:{application.__name__}" == RAY_APPLICATION
    assert f"{gate.__name__}:{gate.middlewares.__name__}" == RAY_GATE
    assert ray.__version__ == RAY_VERSION


def test_ray_serve_reads_how_patient_it_is_to_be():
    """By these names, which it does not mention where they are none of its own."""
    read = {name for name in RAY_TIMEOUTS if name in Path(constants.__file__).read_text()}
    assert read == set(RAY_TIMEOUTS)
