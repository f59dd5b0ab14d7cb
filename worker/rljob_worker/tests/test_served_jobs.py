"""Whole jobs whose policy is in servers of somebody else, with stand-ins for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.rollout.http.tests.stand_in import StandIn
from rljob_worker.tests.jobs import make_job, run_job


@pytest.mark.slow
@pytest.mark.parametrize("routes", ["SGLang", "VLLM"])
def test_each_worker_samples_in_a_server_of_its_own(routes: str, tiny: Path, tmp_path: Path) -> None:
    """With the weights of every step: as likely as the trainer says, within rounding."""
    servers = [StandIn(str(tiny / "model")) for _ in range(2)]
    server = {
        "routes": routes,
        "urls": [item.url for item in servers],
        "weightsDirectory": str(tmp_path / "weights"),
    }
    job = make_job(
        tiny,
        workerGroups=[{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}],
        training={"learningRate": 0.05, "precision": "Float32", "tokensPerMicroBatch": 256},
        rollout={"engine": "HTTP", "server": server, "maxResponseTokens": 12},
        stop={"steps": 3},
    )
    run = run_job(job, tmp_path / "run", timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    for item in servers:
        item.close()
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(abs(step["mismatch/ratio_max"] - 1) < 1e-3 for step in steps), steps
    assert all(step["update/gradient_norm"] > 0 for step in steps)
    assert all(int(item.version) >= 2 for item in servers), [item.version for item in servers]
