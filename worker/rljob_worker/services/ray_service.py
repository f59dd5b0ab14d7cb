"""What Ray Serve imports where KubeRay started it (a RayService): the application of a job's service."""

from __future__ import annotations

from typing import Any

from ray.serve import Application

from rljob_api.planning.serving import ServicePlan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.services.host import application_of


def application(arguments: dict[str, Any]) -> Application:
    """arguments: `service`, as in the job's spec, and `plan`, as in its plan. Raises InvalidJob, which Ray Serve shows
    as the application's message."""
    service, plan = ServiceSpec.model_validate(arguments["service"]), ServicePlan.model_validate(arguments["plan"])
    result: Application = application_of(service, plan)
    return result
