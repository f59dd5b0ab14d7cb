"""What workers decide of a plan that an operator made, which has no models."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rljob_api.loading.load import parse_job
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.planning.tests.configs import DENSE, EXPERTS
from rljob_api.planning.weights.staging import stages_on_device
from rljob_api.planning.weights.tests.test_arrival import JOB
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup.plan import plan_of_worker

AHEAD = (
    "rollout.maxStaleness=1",
    "rollout.parallelism.tensor=1",
    "dataBuffer.memory=64Ti",
    "training.tokensPerMicroBatch=10240",
)


def plans(folder: Path, config: dict[str, object] | None, *overrides: str) -> tuple[Plan, Plan]:
    """Of an operator, and of somebody who has the model."""
    model = folder / "model"
    model.mkdir()
    shapes = {}
    if config is not None:
        (model / "config.json").write_text(json.dumps(config))
        shapes = {str(model): parse_shape(config)}
    job = parse_job(JOB, (f"models=[{{name: actor, path: {model}}}]", *AHEAD, *overrides))
    return plan(job), plan(job, shapes=shapes)


def test_workers_decide_as_if_their_models_had_been_there_when_the_job_was_planned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rljob.start")
    drawn, planned = plans(tmp_path, QWEN3_8B)
    assert any(engine.recomputes for engine in drawn.engines) and not stages_on_device(drawn, "rollout")
    assert plan_of_worker(drawn, "rollout", tmp_path) == planned
    assert not any(engine.recomputes for engine in planned.engines) and stages_on_device(planned, "rollout")
    assert "models take up to " in caplog.text and "versions of weights wait on the device" in caplog.text


def test_activations_without_room_are_computed_again(tmp_path: Path) -> None:
    drawn, planned = plans(tmp_path, QWEN3_8B, "training.tokensPerMicroBatch=32768")
    assert any(engine.recomputes for engine in planned.engines)
    assert plan_of_worker(drawn, "train", tmp_path) == planned


def test_layers_with_experts_are_not_compiled(tmp_path: Path) -> None:
    drawn, _ = plans(tmp_path, DENSE | EXPERTS)
    assert any(engine.compiles for engine in drawn.engines)
    assert not any(engine.compiles for engine in plan_of_worker(drawn, "train", tmp_path).engines)


def test_what_does_not_fit_ends_the_job_before_a_model_is_read(tmp_path: Path) -> None:
    drawn, _ = plans(tmp_path, None)
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN3_8B | {"num_hidden_layers": 720}))
    with pytest.raises(InvalidJob, match="a worker of rollout needs .* GiB to [a-z]+ "):
        plan_of_worker(drawn, "rollout", tmp_path)


@pytest.mark.parametrize("config", [None, {"model_type": "mamba"}])
def test_a_model_of_unknown_shape_changes_nothing(
    tmp_path: Path, config: dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rljob.start")
    drawn, _ = plans(tmp_path, None)
    if config is not None:
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert plan_of_worker(drawn, "train", tmp_path) == drawn
    assert f"memory unknown without the shape of {tmp_path / 'model'}, activations are computed again" in caplog.text


def test_what_was_planned_with_models_stays_as_it_is(tmp_path: Path) -> None:
    _, planned = plans(tmp_path, QWEN3_8B)
    (tmp_path / "model" / "config.json").unlink()
    assert plan_of_worker(planned, "train", tmp_path) == planned
