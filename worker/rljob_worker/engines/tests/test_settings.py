"""Learning-rate schedules by hand."""

from __future__ import annotations

import pytest

from rljob_worker.engines.fsdp.settings import TrainSettings, scheduled_rate_factor


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("Constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("Linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        # 0.5 * (1 + cos(pi * progress)) at progress 0, 1/4, 1/2, 3/4, 1
        ("Cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_two_warmup_steps_of_six(schedule: str, factors: list[float]) -> None:
    settings = TrainSettings(schedule=schedule, warmup_steps=2, total_steps=6)
    assert [scheduled_rate_factor(settings, step) for step in range(7)] == pytest.approx(factors, abs=1e-6)
