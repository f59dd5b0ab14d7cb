"""Policies that read a state and act: the engine that generates and the one that trains compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import WeightFiles, empty_value_model, load_policy, random_policy, random_value_model
from rljob_worker.engines.rollout.generate import answer
from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.transformers import OneForwardRollout
from rljob_worker.engines.tests.acting import BINS, CPU, NUM_TOKENS, asked, decided, states_of, write_mlp_config
from rljob_worker.engines.tests.builders import PolicyGradient, ValueRegression, export_of, mesh_here, save
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import EXACT, assert_close, snapshot
from rljob_worker.errors import BadData, InvalidJob

ROWS = np.arange(6)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> str:
    return write_mlp_config(tmp_path / "model")


def engine_of(path: str, seed: int = 0) -> OneForwardRollout:
    return OneForwardRollout(random_policy(path, torch.float32, seed), CPU)


def test_what_is_drawn_is_scored_alike_at_temperature_1_6(path: str) -> None:
    batch, responses = decided(engine_of(path), ROWS)
    trainer = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(temperature=1.6, trainable=False), CPU)
    np.testing.assert_allclose(trainer.log_probs(batch).values, responses.log_probs.values, atol=1e-5)
    assert (responses.response_ids.lengths == NUM_TOKENS).all() and (responses.response_ids.values < BINS).all()
    assert (responses.endings == Ending.END_TOKEN).all()


def test_a_log_prob_is_that_of_the_layers_written_out(path: str) -> None:
    model = random_policy(path, torch.float64, 0)
    tokens, log_probs = _one(OneForwardRollout(model, CPU), 2)
    weights = dict(model.named_parameters())
    hidden = torch.from_numpy(states_of(np.array([2])).values.astype(np.float64))
    for name in ("model.layers.0", "model.layers.1", "model.tokens"):
        hidden = torch.tanh(weights[f"{name}.weight"] @ hidden + weights[f"{name}.bias"])
    # the row of the prompt's word is no bin: the distribution leaves it out
    logits = hidden.view(NUM_TOKENS, 8) @ weights["lm_head.weight"][:BINS].T + weights["lm_head.bias"][:BINS]
    expected = torch.log_softmax(logits / 1.6, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    np.testing.assert_allclose(log_probs, expected.detach().numpy(), atol=1e-6)


def _one(engine: OneForwardRollout, row: int) -> tuple[list[int], list[float]]:
    result = answer(engine, asked(np.array([row])))
    return result.response_ids.row(0).tolist(), result.log_probs.row(0).tolist()


def test_a_row_gets_the_same_alone_in_pieces_and_with_tokens_that_it_brings(path: str) -> None:
    engine = engine_of(path)
    alone = {row: _one(engine_of(path), row) for row in ROWS.tolist()}
    engine.submit(asked(ROWS))
    engine.pause(ROWS[:2])
    assert engine.load.paused == 2
    begun = engine.peek(ROWS[:1])
    assert begun.response_ids.lengths.tolist() == [0]
    first = engine.advance(1)
    assert sorted(first.row_ids.tolist()) == [2, 3, 4, 5]
    engine.resume(ROWS[:2])
    aborted = engine.abort(ROWS[:1])
    assert aborted.endings.tolist() == [Ending.ABORTED]
    second = engine.advance()
    for part in (first, second):
        for at, row in enumerate(part.row_ids.tolist()):
            assert part.response_ids.row(at).tolist() == alone[row][0]
            np.testing.assert_allclose(part.log_probs.row(at), alone[row][1], atol=1e-6)


def test_temperature_0_takes_the_most_likely_bin(path: str) -> None:
    result = answer(engine_of(path), asked(ROWS[:1], Sampling(temperature=0.0)))
    assert np.exp(result.log_probs.values).min() >= 1 / BINS


def test_requests_that_a_policy_cannot_decide_are_refused_by_row(path: str) -> None:
    engine = engine_of(path)
    short = Column.from_lengths(np.zeros(2, np.float32), [2])
    with pytest.raises(BadData, match="row 2: its state has 2 numbers, and the model reads 3"):
        engine.submit(asked(np.array([1]), states=short))
    with pytest.raises(BadData, match="row 2: its state has 0 numbers"):
        engine.submit(asked(np.array([1]), states=None))
    with pytest.raises(BadData, match="row 2: its state has a number that is not finite"):
        engine.submit(asked(np.array([1]), states=Column.from_lengths(np.full(3, np.nan, np.float32), [3])))
    with pytest.raises(InvalidJob, match="row 2: its response may have 3 tokens, and a decision of the model has 4"):
        engine.submit(replace(asked(np.array([1])), max_tokens=np.array([3])))


def test_new_weights_are_those_that_decisions_come_from(path: str) -> None:
    engine, other = engine_of(path), random_policy(path, torch.float32, 1)
    engine.load_weights(other.named_parameters(), 7)
    assert _one(engine, 3) == _one(engine_of(path, 1), 3)
    result = answer(engine, asked(ROWS))
    assert (result.token_versions.values == 7).all()
    engine.sleep("Weights")


def learn(rank: int, path: str, mesh: Mesh) -> dict[str, Any]:
    """What a policy and a critic learn in two updates."""
    ranks = mesh_here(mesh)
    batch, _ = decided(OneForwardRollout(random_policy(path, torch.float64, 0), CPU), ROWS)
    # the second rank has a group, and then nothing
    first = ranks.mesh.dp_rank(ranks.rank) == 0
    parts = [batch] * 2
    if ranks.mesh.dp > 1:
        parts = [batch.take(ROWS[:4] if first else ROWS[4:]), batch if first else batch.take(ROWS[:0])]
    result: dict[str, Any] = {}
    settings = replace(EXACT, tokens_per_micro_batch=11, temperature=1.6)
    models = {"policy": random_policy(path, torch.float64, 0), "critic": random_value_model(path, torch.float64, 0)}
    for name, objective in (("policy", PolicyGradient()), ("critic", ValueRegression())):
        engine = FSDPEngine(models[name], settings, CPU, ranks)
        norms = [engine.update(part, objective)["update/gradient_norm"].value for part in parts]
        result[name] = {"norms": norms, "weights": snapshot(engine)}
    return result


def test_two_ranks_learn_what_one_does(path: str, tmp_path: Path) -> None:
    one = learn(0, path, Mesh())
    for rank in run_ranks(2, learn, tmp_path / "two", path, Mesh(dp=2)):
        for name in ("policy", "critic"):
            np.testing.assert_allclose(rank[name]["norms"], one[name]["norms"], atol=1e-12)
            assert min(one[name]["norms"]) > 1e-6
            assert_close(rank[name]["weights"], one[name]["weights"], 1e-12)


def test_a_checkpoint_is_loaded_and_exported_as_a_directory_that_acts(path: str, tmp_path: Path) -> None:
    batch, _ = decided(engine_of(path), ROWS)
    engine = FSDPEngine(random_policy(path, torch.float32, 0), replace(EXACT, precision="Float32"), CPU)
    engine.update(batch, PolicyGradient())
    save(engine, tmp_path / "checkpoint")
    other = FSDPEngine(random_policy(path, torch.float32, 5), replace(EXACT, precision="Float32"), CPU)
    other.load(tmp_path / "checkpoint")
    np.testing.assert_array_equal(other.log_probs(batch).values, engine.log_probs(batch).values)
    export_of(engine, tmp_path / "export", checkpoint=tmp_path / "checkpoint")
    exported = OneForwardRollout(load_policy(str(tmp_path / "export"), torch.float32, CPU), CPU)
    kept = OneForwardRollout(engine.model, CPU)
    assert _one(exported, 4) == _one(kept, 4)
    # a critic begins on the layers of the policy
    critic = empty_value_model(str(tmp_path / "export"), torch.float32).to_empty(device=CPU)
    WeightFiles.find(str(tmp_path / "export")).fill(critic)


def test_a_batch_without_states_or_with_cut_decisions_is_refused(path: str) -> None:
    batch, _ = decided(engine_of(path), ROWS)
    engine = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(trainable=False), CPU)
    with pytest.raises(BadData, match="reads a state of 3 numbers, and the batch has no column 'state'"):
        engine.log_probs(batch.select(["prompt_ids", "response_ids"]))
    with pytest.raises(BadData, match="row 1: its state has 2 numbers, and the model reads 3"):
        engine.log_probs(batch.with_columns({"state": Column.ragged([[1.0, 2.0]] * 6, "float32")}))
    cut = {"response_ids": Column.ragged([[1, 2, 3]] * 6)}
    with pytest.raises(BadData, match="a response has 3 tokens, and a decision of the model has 4"):
        engine.log_probs(batch.with_columns(cut))
