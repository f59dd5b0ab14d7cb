"""Routes of experts go with the rows of a job, between pods and through rounds of sampling."""

import json
import shutil

import pytest

from rljob_worker.engines.tests.builders import write_config
from rljob_worker.tests.jobs import DISAGGREGATED, make_job, run_job


@pytest.fixture
def experts(tiny, tmp_path):
    """A model with experts that has the tiny one's tokens."""
    path = tmp_path / "experts"
    shutil.copytree(tiny / "model", path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tokens = json.loads((tiny / "model" / "config.json").read_text())
    sizes = {name: tokens[name] for name in ("vocab_size", "eos_token_id", "max_position_embeddings")}
    write_config(path, "qwen3_moe", **sizes)
    return {"models": [{"name": "actor", "path": str(path), "initialise": "Random"}]}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, {"dynamic": True}], ids=["rollout", "sample"])
def test_tokens_are_trained_by_the_experts_that_generated_them(tiny, tmp_path, experts, sampling):
    algorithm = {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}, "sampling": sampling}
    training = {"learningRate": 1.0e-3, "precision": "Float32", "miniBatchRows": 8, "routerReplay": "Rollout"}
    spec = {"algorithm": algorithm, "training": training, "workerGroups": DISAGGREGATED}
    run = run_job(make_job(tiny, **experts, **spec), tmp_path)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics[1:]  # after the validation before the first
    assert [step["update/gradient_norm"] > 0 for step in steps] == [True, True]
    assert all(abs(step["mismatch/k3"]) < 1e-9 for step in steps)
