"""What models beside a job run on, as the plan says it."""

import json
from typing import Any

import pytest

from rljob_api.catalogue.profiles import profiles_from
from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_api.planning.serving import ServicePlan
from rljob_api.tests.builders import SMALL

SITE = profiles_from(
    {"moore": {"resource": "mthreads.com/vgpu", "device": "musa", "backend": "mccl", "rayResource": "M"}}
)


def planned(**fields: Any) -> ServicePlan:
    judge = {"name": "judge", "run": "rljob_worker.services:reward_model", "options": {"path": "m"}, **fields}
    made = plan(parse_job(SMALL, [f"services={json.dumps([judge])}"], SITE), SITE)
    assert made.services == (made.service("judge"),)
    return made.service("judge")


@pytest.mark.parametrize(
    ("profile", "device", "accelerators", "ray_resource"),
    [
        ("cpu", "cpu", 0, None),  # its count says how many CPUs a copy is worth
        ("nvidia-h100", "cuda", 2, "GPU"),
        ("huawei-npu", "npu", 2, "NPU"),
        ("moore", "musa", 2, "M"),
    ],
)
def test_a_copy_has_the_accelerators_of_its_profile(
    profile: str, device: str, accelerators: int, ray_resource: str | None
) -> None:
    result = planned(workerGroup={"accelerator": {"profile": profile, "count": 2}})
    assert result == ServicePlan(
        name="judge", profile=profile, copies=1, device=device, accelerators=accelerators, ray_resource=ray_resource
    )


@pytest.mark.parametrize(
    ("fields", "copies"),
    [
        ({"workerGroup": {"replicas": 3}}, 3),
        # the most that there may be, for whom there must be a place
        ({"autoscaling": {"minReplicas": 2, "maxReplicas": 5}}, 5),
    ],
)
def test_every_copy_is_counted(fields: dict[str, Any], copies: int) -> None:
    group = {**fields.pop("workerGroup", {}), "accelerator": {"profile": "nvidia", "count": 2}}
    result = planned(workerGroup=group, **fields)
    assert (result.copies, result.num_accelerators) == (copies, 2 * copies)


def test_a_job_without_services_plans_none() -> None:
    assert plan(parse_job(SMALL)).services == ()
