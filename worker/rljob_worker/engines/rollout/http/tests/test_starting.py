"""From a plan to an engine with a server behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Column
from rljob_worker.engines.registry import build_rollout_engine
from rljob_worker.engines.rollout.http.tests.stand_in import StandIn
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.tests.subjects import CPU, write_model
from rljob_worker.errors import InvalidJob


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandIn]:
    """That asks for a token, and has a model with weights of its own."""
    running = StandIn(write_model(tmp_path / "server", seed=1), token="secret")
    yield running
    running.close()


def plan_with(server: StandIn, model: str, folder: Path) -> Plan:
    asked = f"{{routes: SGLang, urls: ['{server.url}'], weightsDirectory: '{folder}', timeoutSeconds: 30}}"
    return make_plan(
        "rollout.engine=HTTP",
        f"rollout.server={asked}",
        f"models=[{{name: actor, path: '{model}'}}]",
        "training.precision=Float32",
    )


def built_by(plan: Plan) -> RolloutEngine:
    (engine,) = (engine for engine in plan.engines if engine.kind == "Rollout")
    return build_rollout_engine(plan, engine, CPU)


def test_it_begins_with_the_weights_of_the_job(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJOB_ROLLOUT_SERVER_TOKEN", "secret")
    engine = built_by(plan_with(server, write_model(tmp_path / "model"), tmp_path / "weights"))
    prompts, one = Column.ragged([np.array([5, 6])]), np.zeros(1, np.int64)
    engine.submit(Requests(one, one, prompts, one, np.array([4]), (Sampling(),)))
    ended = engine.advance()
    engine.close()
    tokens = ended.response_ids.row(0).tolist()
    with torch.no_grad():  # the server has by now what it was given
        logits = server.model(torch.tensor([[5, 6, *tokens]])).logits[0, 1:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    np.testing.assert_allclose(ended.log_probs.row(0), expected.numpy(), atol=1e-5)
    assert server.version == "0" and engine.version == 0
    own = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), server.model.parameters(), strict=True))


def test_without_its_token_a_server_is_named(server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLJOB_ROLLOUT_SERVER_TOKEN", raising=False)
    plan = plan_with(server, write_model(tmp_path / "model"), tmp_path / "weights")
    with pytest.raises(InvalidJob, match=f"{server.url}/health answers 401.*RLJOB_ROLLOUT_SERVER_TOKEN"):
        built_by(plan)
