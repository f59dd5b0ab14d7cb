"""What is to run on a borrowed machine, rehearsed without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from on_device import report as reporting
from on_device.parts import REHEARSAL, VARIANTS, estimate
from on_device.report import report
from on_device.shapes import DeviceModel, update_flops
from rljob_worker.engines.fsdp import TrainSettings


@pytest.mark.slow
def test_every_part_can_be_rehearsed_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [variant for variant in VARIANTS if not variant.settings.compile]  # which takes a CPU minutes
    monkeypatch.setattr(reporting, "VARIANTS", variants)
    lines = list(report(replace(REHEARSAL, response=16), ("tiny",), ("tiny",), tmp_path))
    assert not [line for line in lines if "failed" in line]
    assert [line.split(" | ")[1] for line in lines if line.startswith("| tiny | ")][:2] == ["eager", "recorded"]
    updates = [line for line in lines if line.startswith("| tiny, ")]
    assert len(updates) == len(variants) and all(line.count("|") == reporting.UPDATE.count("|") for line in updates)
    assert lines[-1] == reporting.UNVERIFIED


@pytest.mark.slow
def test_a_part_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError

    for part in ("generation", "update"):
        monkeypatch.setattr(reporting, part, out_of_memory)
    lines = list(report(REHEARSAL, ("tiny",), ("tiny",), tmp_path))
    assert len([line for line in lines if "failed: MemoryError" in line]) == 2 + len(VARIANTS)
    assert any(line.startswith("| tiny | 0.0") for line in lines)  # the sync


def test_the_sums_of_an_update_are_those_of_its_shape(tmp_path: Path) -> None:
    shape = DeviceModel.write("tiny", tmp_path).shape
    # a layer: attention 32 x (32 + 2 x 16) + 32 x 32, MLP 3 x 32 x 64, norms 2 x 32 and 2 x 8
    assert shape.layer == 2048 + 1024 + 6144 + 64 + 16
    # two layers; queries of 32 numbers meet 5 tokens; 64 words of 32 numbers for 4 responses of 10 tokens
    assert update_flops(shape, 10, 4, 5) == 10 * 2 * (6 * 9296 + 12 * 32 * 5) + 4 * 6 * 64 * 32


def test_the_plan_of_06b_is_what_people_know_of_it(tmp_path: Path) -> None:
    model = DeviceModel.write("0.6B", tmp_path)
    assert model.shape.parameters == 596_049_920
    kept, peak = estimate(model, TrainSettings(precision="BFloat16"), 8192, 6144, REHEARSAL.device)
    assert kept == 12 * 596_049_920 < peak  # weights and two means in float32
