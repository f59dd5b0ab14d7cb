"""Routes of rollout in training: the experts that generated a token compute it, weighed by the router as it is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch, response_last_layer
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import Responses, generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.router import replace_routers, routers, routing_of
from rljob_worker.engines.tests.builders import (
    END,
    VOCABULARY,
    PolicyGradient,
    a_batch,
    mesh_here,
    routed,
    write_config,
)
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, InvalidJob

CPU = torch.device("cpu")
EXPERTS, CHOSEN, LAYERS, GROUP_SIZE = 6, 2, 2, 3
PROMPTS = [np.random.default_rng(length).integers(2, VOCABULARY, length) for length in (3, 9, 1, 30)]
EXACT = TrainSettings(precision="Float64", learning_rate=1e-2, min_unit_bytes=0, follows_routes=True)
LENGTHS = [5, 1, 9, 3, 0, 7, 2, 8]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3_moe")


def policy(path: str) -> PreTrainedModel:
    """With experts that differ enough to differ in what they predict."""
    model = random_policy(path, torch.float64, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                parameter.mul_(10)
    return model


def rollout_of(model: PreTrainedModel, room: int = 10**6) -> TransformersRollout:
    """room: tokens in the cache; two layers of two heads of 8 numbers of 8 bytes, twice."""
    return TransformersRollout(model, CPU, (END,), 1.0, lambda: room * 512, records_routes=True)


def responses_of(engine: TransformersRollout) -> Responses:
    row_ids = np.arange(len(PROMPTS) * GROUP_SIZE)
    return generate(engine, PROMPTS, Sampling(seed=3), row_ids, GROUP_SIZE, 20)


def generated(responses: Responses) -> Batch:
    rows = np.arange(len(PROMPTS) * GROUP_SIZE)
    assert responses.prompt_routes is not None and responses.routes is not None
    columns = {
        "prompt_ids": Column.ragged(PROMPTS).per_group_at(rows[::GROUP_SIZE], len(rows)),
        "response_ids": responses.response_ids,
        "prompt_routed_experts": replace(responses.prompt_routes, per_group=True),
        "routed_experts": responses.routes,
    }
    return Batch.build(rows, rows // GROUP_SIZE, columns)


def mismatch(engine: FSDPEngine, batch: Batch, responses: Responses) -> float:
    """The largest difference between what rollout and training say of a token."""
    return float(np.abs(engine.log_probs(batch).values - responses.log_probs.values).max())


@pytest.mark.parametrize(
    ("is_normed", "weights", "gradient"),
    [
        # p = (1/2, 1/3, 1/6); the router alone would choose 0 and 1, and is given 0 and 2.
        # Normed: w_0 = p_0 / (p_0 + p_2) = 3/4; dw_0/dz = w_0 w_2 (1, 0, -1).  Else dp_0/dz = p_0 (1 - p_0, -p_1, -p_2)
        (True, [3 / 4, 1 / 4], [3 / 16, 0, -3 / 16]),
        (False, [1 / 2, 1 / 6], [1 / 4, -1 / 6, -1 / 12]),
    ],
)
def test_given_experts_are_weighed_by_the_router_and_teach_it(
    is_normed: bool, weights: list[float], gradient: list[float]
) -> None:
    config = Qwen3MoeConfig(hidden_size=3, num_experts=3, num_experts_per_tok=2, norm_topk_prob=is_normed)
    router = Qwen3MoeTopKRouter(config).double()
    router.weight.data = torch.eye(3, dtype=torch.float64)
    replace_routers(router)
    hidden = torch.tensor([[math.log(3), math.log(2), 0.0]], dtype=torch.float64, requires_grad=True)
    assert router(hidden)[2].tolist() == [[0, 1]]
    routing_of(router).follow(torch.tensor([[[0, 2]]], dtype=torch.uint8))
    _, result, experts = router(hidden)
    assert experts.tolist() == [[0, 2]] and result.tolist() == [pytest.approx(weights)]
    result[0, 0].backward()
    assert hidden.grad is not None and hidden.grad.tolist() == [pytest.approx(gradient)]


@pytest.mark.parametrize("room", [10**6, 100, 55])
def test_rollout_records_what_training_would_choose_however_rows_wait(path: str, room: int) -> None:
    model = policy(path)
    responses = responses_of(rollout_of(model, room))
    assert responses.prompt_routes is not None and responses.prompt_routes.dtype == "uint8"
    assert responses.prompt_routes.lengths.tolist() == [3, 0, 0, 9, 0, 0, 1, 0, 0, 30, 0, 0]
    rows = MicroBatch.of(generated(responses), np.arange(12), CPU, with_routes=True)
    with torch.no_grad(), routing_of(model).recording() as recording:
        response_last_layer(model, rows)
    assert rows.routes is not None and np.array_equal(rows.routes.numpy(), recording.routes())
    assert len(np.unique(recording.routes(), axis=0)) > 10  # tokens go different ways


def test_experts_beyond_a_byte_are_recorded_whole() -> None:
    router = Qwen3MoeTopKRouter(Qwen3MoeConfig(hidden_size=4, num_experts=300, num_experts_per_tok=2))
    torch.nn.init.normal_(router.weight)
    replace_routers(router)
    with torch.no_grad(), routing_of(router).recording() as recording:
        experts = router(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))[2]
    assert recording.routes().dtype == np.uint16 and recording.routes()[:, 0].tolist() == experts.tolist()
    assert recording.routes().max() > 255


@pytest.mark.parametrize("follows", [True, False])
def test_near_ties_that_fall_the_other_way_matter_only_where_routes_are_not_followed(path: str, follows: bool) -> None:
    # all experts of a layer are almost equally likely; what tells them apart has the other sign in training
    generating, training = policy(path), policy(path)
    with torch.no_grad():
        for ours, theirs in zip(routers(generating), routers(training), strict=True):
            apart = 1e-7 * torch.randn(ours.weight.shape, dtype=torch.float64)
            ours.weight.copy_(ours.weight[:1] + apart)
            theirs.weight.copy_(ours.weight - 2 * apart)
    responses = responses_of(rollout_of(generating))
    engine = FSDPEngine(training, replace(EXACT, follows_routes=follows), CPU)
    result = mismatch(engine, generated(responses), responses)
    assert result < 1e-5 if follows else result > 1e-2


def test_a_model_that_is_shared_chooses_again_when_it_generates(path: str) -> None:
    model = policy(path)
    engine, rollout = FSDPEngine(model, replace(EXACT, learning_rate=0.0), CPU), rollout_of(model)
    responses = responses_of(rollout)
    batch = generated(responses).with_columns(
        {
            "advantages": Column.from_lengths(np.ones(len(responses.log_probs.values)), responses.log_probs.lengths),
            "weight": Column.fixed(np.ones(12)),
        }
    )
    assert mismatch(engine, batch, responses) < 1e-6
    for work in (lambda: engine.log_probs(batch), lambda: engine.update(batch, PolicyGradient())):
        work()
        assert responses_of(rollout).response_ids.to_list()[5].tolist() == responses.response_ids.row(5).tolist()


def train(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    """An update by one rank of a mesh: what it said before, the size of its step and the weights it led to."""
    engine = FSDPEngine(policy(path), settings, CPU, mesh_here(mesh))
    batch = routed(a_batch(LENGTHS))
    if mesh.dp > 1:
        batch = batch.take(np.arange(5) if mesh.dp_rank(rank) == 0 else np.arange(5, 8))
    log_probs = engine.log_probs(batch).values
    metrics = engine.update(batch, PolicyGradient())
    weights = torch.cat([item.flatten().clone() for _, item in engine.weights(dtype=torch.float64)])
    return {"log_probs": log_probs, "norm": metrics["update/gradient_norm"].value, "weights": weights}


def assert_alike(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["norm"] == pytest.approx(expected["norm"], rel=1e-9)
    torch.testing.assert_close(result["weights"], expected["weights"], atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def one(path: str) -> dict[str, Any]:
    return train(0, path, Mesh(), EXACT)


def test_routes_are_those_of_the_batch_and_no_others(path: str, one: dict[str, Any]) -> None:
    own = train(0, path, Mesh(), replace(EXACT, follows_routes=False))
    assert np.abs(own["log_probs"] - one["log_probs"]).max() > 1e-2


@pytest.mark.parametrize(
    "changes", [{"tokens_per_micro_batch": 12}, {"activation_checkpointing": True, "router_aux_loss_coefficient": 0.1}]
)
def test_an_update_is_the_same_however_rows_are_split_and_recomputed(path: str, changes: dict[str, Any]) -> None:
    balanced = {name: value for name, value in changes.items() if name.startswith("router")}
    expected = train(0, path, Mesh(), replace(EXACT, **balanced))
    result = train(0, path, Mesh(), replace(EXACT, **changes))
    assert_alike(result, expected)
    np.testing.assert_allclose(result["log_probs"], expected["log_probs"], atol=1e-6)


@pytest.mark.parametrize("mesh", [Mesh(dp=2, cp=2), Mesh(dp=2, tp=2), Mesh(dp=2, ep=2)])
def test_ranks_follow_the_routes_of_their_own_tokens(
    tmp_path: Path, path: str, one: dict[str, Any], mesh: Mesh
) -> None:
    ranks = run_ranks(mesh.size, train, tmp_path, path, mesh, replace(EXACT, tokens_per_micro_batch=7))
    for item in ranks:
        assert_alike(item, one)
    leaders = [item["log_probs"] for rank, item in enumerate(ranks) if mesh.is_row_leader(rank)]
    np.testing.assert_allclose(np.concatenate(leaders), one["log_probs"], atol=1e-6)


class Nothing(PolicyGradient):
    """A loss of 0: what is left is the cost of the load."""

    def __call__(self, tokens, counts):  # type: ignore[no-untyped-def]
        return 0.0 * super().__call__(tokens, counts)[0], Measured()


def test_the_cost_of_the_load_is_of_the_routers_own_choice(tmp_path: Path) -> None:
    # one layer, so that what its router reads does not depend on routes
    path = write_config(tmp_path, "qwen3_moe", num_hidden_layers=1)
    batch = routed(a_batch(LENGTHS))
    own, replayed = (
        FSDPEngine(policy(path), replace(EXACT, follows_routes=follows, router_aux_loss_coefficient=0.1), CPU).update(
            batch, Nothing()
        )
        for follows in (False, True)
    )
    for name in ("update/expert_balance_loss", "update/expert_load_max", "update/gradient_norm"):
        assert replayed[name].value == pytest.approx(own[name].value, rel=1e-12)


@pytest.mark.parametrize("name", ["prompt_routed_experts", "routed_experts"])
def test_routes_of_other_tokens_are_refused_by_the_name_of_their_column(path: str, name: str) -> None:
    batch = routed(a_batch([4, 4]))
    column = batch.columns[name]
    shorter = Column.from_lengths(column.values[1:], column.lengths - [1, 0])
    engine = FSDPEngine(policy(path), EXACT, CPU)
    with pytest.raises(BadData, match=f"column '{name}' does not have one value per token"):
        engine.log_probs(batch.with_columns({name: shorter}))


def test_a_model_without_experts_has_no_routes(tmp_path: Path) -> None:
    dense = random_policy(write_config(tmp_path), torch.float64, 0)
    refused = "training.routerReplay: Rollout is for models with experts, and Qwen3ForCausalLM has none"
    with pytest.raises(InvalidJob, match=refused):
        FSDPEngine(dense, EXACT, CPU)
    with pytest.raises(InvalidJob, match=refused):
        rollout_of(dense)
