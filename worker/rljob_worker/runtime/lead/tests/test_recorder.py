"""What the lead works out from the figures of all workers."""

import pytest

from rljob_worker.runtime.lead.recorder import derived


def test_derived_metrics():
    """Rewards 0, 0, 0, 1: mean 1/4, mean square 1/4, so the spread is sqrt(1/4 - 1/16) = 0.4330."""
    found = derived(
        {
            "reward/mean": 0.25,
            "reward/square_mean": 0.25,
            "policy/clip_fraction_low": 0.125,
            "policy/clip_fraction_high": 0.25,
            "tokens/total": 600,
            "time/step_seconds": 2.0,
            "data/bytes_rollout->reward": 40,
            "data/bytes_metrics": 2,
        }
    )
    assert found["reward/std"] == pytest.approx(0.4330, abs=1e-4) and "reward/square_mean" not in found
    assert found["policy/clip_fraction"] == 0.375
    assert found["throughput/tokens_per_second"] == 300
    assert found["data/bytes_total"] == 42


def test_nothing_is_derived_from_what_is_not_there():
    assert derived({"reward/mean": 0.25}) == {"reward/mean": 0.25, "data/bytes_total": 0}
