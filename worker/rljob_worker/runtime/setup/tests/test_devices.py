"""What torch has of each kind of device, and what is said of a CPU that is slow in the job's format."""

import os
import subprocess
import sys

import pytest
import torch

from rljob_api.tests.builders import make_plan
from rljob_worker.devices.modules import num_devices
from rljob_worker.devices.tests.fake_device import FakeModule
from rljob_worker.engines.deterministic import strict_backward
from rljob_worker.engines.tests.deterministic_job import FREE, STRICT, WARNS, mode, torch_as_it_was
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup import resources
from rljob_worker.runtime.setup.devices import device_of_worker, require_devices_of_torch, slow_precision
from rljob_worker.runtime.setup.resources import build_resources


def group(profile: str):
    (only,) = make_plan(f"workerGroups=[{{name: train, accelerator: {{profile: {profile}, count: 2}}}}]").groups
    return only


def test_hidden_devices_and_those_of_an_absent_plugin_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [num_devices(kind) for kind in ("cuda", "mlu", "hpu")] == [0, 0, 0]


def test_a_group_for_cpus_needs_no_device_and_another_does() -> None:
    require_devices_of_torch(group("cpu"))
    with pytest.raises(InvalidJob, match="no MLU device for a pod of worker group train, which wants 2"):
        require_devices_of_torch(group("cambricon"))


def test_a_deterministic_job_asks_torch_for_it_on_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda _: FakeModule())
    with torch_as_it_was():
        for deterministic in ("false", "true"):
            plan = make_plan(f"training.deterministic={deterministic}")
            assert device_of_worker(plan, group("cpu"), 0).type == "cpu"
        assert mode() == FREE and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert device_of_worker(plan, group("nvidia"), 1) == torch.device("cuda", 1)
        assert mode() == WARNS and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with strict_backward():
            assert mode() == STRICT  # where torch warns, its attention adds in any order


SLOW = ("training.precision=BFloat16", "cpu", False)


@pytest.mark.parametrize(
    "precision, device, has_bfloat16, warns",
    [
        (*SLOW, True),
        ("training.precision=BFloat16", "cpu", True, False),
        ("training.precision=BFloat16", "cuda", False, False),
        ("training.precision=Float32", "cpu", False, False),
        ("training.precision=Float64", "cpu", False, False),
    ],
)
def test_a_warning_where_a_cpu_is_asked_for_what_it_computes_slowly(precision, device, has_bfloat16, warns):
    plan = make_plan(precision)
    group = plan.groups[0].model_copy(update={"device": device})
    said = slow_precision(plan, group, has_bfloat16)
    assert (said is not None and "set training.precision: Float32" in said) == warns


@pytest.mark.parametrize("rank, times", [(0, 1), (1, 0)])
def test_the_first_worker_of_a_group_says_it_once(rank, times, monkeypatch, caplog, tmp_path):
    plan = make_plan("training.precision=BFloat16")
    group = plan.groups[0].model_copy(update={"name": "idle", "device": "cpu", "schedule": ()})
    monkeypatch.setattr(resources, "cpu_has_bfloat16", lambda: False)
    build_resources(plan, group, rank, torch.device("cpu"), tmp_path)
    assert sum("BFloat16" in record.getMessage() for record in caplog.records) == times


@pytest.mark.slow
def test_a_cpu_with_avx2_alone_has_no_bfloat16():
    code = "from rljob_worker.runtime.setup.devices import cpu_has_bfloat16; print(cpu_has_bfloat16())"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
