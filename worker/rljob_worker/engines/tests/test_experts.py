"""Models with experts: their names in files, their routers, and what an uneven load costs, whatever the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.models import Adapter, WeightFiles, empty_policy, load_policy, random_policy
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.router import replace_routers
from rljob_worker.engines.tests.builders import END, PolicyGradient, a_batch, export_of, write_config, write_model
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, InvalidJob

CPU = torch.device("cpu")
EXPERTS, CHOSEN, LAYERS = 6, 2, 2
LENGTHS = [5, 1, 9, 3, 0, 7, 2, 8]


class Nothing(PolicyGradient):
    """A loss of 0: what is left is the cost of the load."""

    def __call__(self, tokens, counts):  # type: ignore[no-untyped-def]
        return 0.0 * super().__call__(tokens, counts)[0], Measured()


def settings(**changes: object) -> TrainSettings:
    exact = {"precision": "Float64", "learning_rate": 1e-2, "min_unit_bytes": 0, "router_aux_loss_coefficient": 0.1}
    return TrainSettings(**{**exact, **changes})  # type: ignore[arg-type]


def policy(directory: Path, **changes: object) -> FSDPEngine:
    result = settings(**changes)
    path = write_config(directory, "qwen3_moe")
    return FSDPEngine(random_policy(path, result.master_dtype, 0), result, CPU)


def weights_of(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=torch.float64)}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def test_files_name_experts_one_by_one_and_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    path = write_model(tmp_path / "source", "qwen3_moe")
    engine = FSDPEngine(load_policy(path, torch.float32, CPU), TrainSettings(trainable=False), CPU)
    export_of(engine, tmp_path / "export")
    source, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("source", "export"))
    assert f"model.layers.1.mlp.experts.{EXPERTS - 1}.up_proj.weight" in source
    sent = dict(engine.weights())
    assert source.keys() == exported.keys() == sent.keys()
    assert all(torch.equal(source[name], item[name]) for name in source for item in (exported, sent))


def test_a_generating_model_gets_experts_by_their_names_in_files(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3_moe", tie_word_embeddings=True)
    engine = FSDPEngine(load_policy(path, torch.float32, CPU), TrainSettings(trainable=False), CPU)
    rollout = TransformersRollout(random_policy(path, torch.float32, 7), CPU, (END,))
    rollout.load_weights(engine.weights(), 1)
    mine, theirs = (dict(item.model.named_parameters()) for item in (engine, rollout))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    with pytest.raises(InvalidJob, match=r"experts.0.down_proj.weight of the rollout model did not come"):
        rest = [pair for pair in engine.weights() if "layers.0.mlp.experts.0.down_proj" not in pair[0]]
        rollout.load_weights(rest, 2)


def test_an_expert_that_no_file_has_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3_moe", num_experts=EXPERTS - 1)
    write_config(tmp_path, "qwen3_moe")  # of one expert more
    with pytest.raises(BadData, match=rf"its files have no model.layers.0.mlp.experts.{EXPERTS - 1}.gate_proj.weight"):
        load_policy(path, torch.float32, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_is_transformers_own_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=16, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=True)
    router = Qwen3MoeTopKRouter(config).to(dtype)
    torch.nn.init.normal_(router.weight)
    hidden = torch.randn(7, 16, dtype=dtype)
    stock = router(hidden)
    replace_routers(router)
    assert all(torch.equal(left, right) for left, right in zip(router(hidden), stock, strict=True))


def by_hand(engine: FSDPEngine, rows: MicroBatch) -> torch.Tensor:
    """The cost of the load without its coefficient, from logits of all routers of one forward pass."""
    logits: list[torch.Tensor] = []
    routers = [layer.mlp.gate for layer in engine.model.model.layers]
    hooks = [
        router.register_forward_hook(lambda _module, _inputs, result: logits.append(result[0])) for router in routers
    ]
    response_log_probs(engine.model, rows, 1.0)
    for hook in hooks:
        hook.remove()
    cost = torch.zeros((), dtype=torch.float64)
    for logit in logits:
        p = torch.softmax(logit.index_select(0, rows.predicts), -1)
        chosen = torch.nn.functional.one_hot(p.topk(CHOSEN).indices, EXPERTS).sum(1).double()
        cost = cost + EXPERTS * (chosen.mean(0) * p.mean(0)).sum() / LAYERS
    return cost


def test_the_cost_of_the_load_and_its_gradient_are_those_of_the_formula(tmp_path: Path) -> None:
    batch = a_batch(LENGTHS)
    engine = policy(tmp_path, max_grad_norm=1e9, learning_rate=0.0)
    engine.update(a_batch([4, 6], seed=1), Nothing())  # whose load counts for itself
    cost = by_hand(engine, MicroBatch.of(batch, np.arange(len(batch)), CPU))
    (0.1 * cost).backward()
    cost = cost.detach()
    parameters = [parameter for parameter in engine.model.parameters() if parameter.grad is not None]
    expected = torch.stack([parameter.grad.square().sum() for parameter in parameters]).sum().sqrt()
    engine.model.zero_grad()
    result = engine.update(batch, Nothing())
    assert result["update/expert_balance_loss"].value == pytest.approx(float(cost), abs=1e-12)
    assert result["update/gradient_norm"].value == pytest.approx(float(expected), rel=1e-9)
    assert result["update/expert_load_max"].value > 1 > result["update/expert_load_min"].value


SPLIT, RECOMPUTED = {"tokens_per_micro_batch": 12}, {"activation_checkpointing": True}


@pytest.mark.parametrize(("coefficient", "changes"), [(0.1, SPLIT), (0.1, RECOMPUTED), (0.0, SPLIT | RECOMPUTED)])
def test_an_update_is_the_same_however_rows_are_split_and_recomputed(
    tmp_path: Path, coefficient: float, changes: dict[str, int]
) -> None:
    batch = a_batch(LENGTHS)
    plain, other = (policy(tmp_path, router_aux_loss_coefficient=coefficient, **item) for item in ({}, changes))
    for _ in range(2):
        left, right = plain.update(batch, PolicyGradient()), other.update(batch, PolicyGradient())
        for name in ("update/gradient_norm", "update/expert_balance_loss", "update/expert_load_max"):
            assert right[name].value == pytest.approx(left[name].value, rel=1e-10), name
    assert largest_difference(weights_of(plain), weights_of(other)) < 1e-10


def train(rank: int, path: str, mesh: Mesh) -> dict[str, object]:
    """An update of a sharded model that was read from its files; no copy has rows beyond the second."""
    engine = FSDPEngine(
        empty_policy(path, torch.float64),
        settings(tokens_per_micro_batch=14, held_bytes=0),
        CPU,
        build_meshes([mesh], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[mesh],
        WeightFiles.find(path),
    )
    batch = a_batch(LENGTHS)
    if mesh.dp > 1:
        copy = rank // mesh.cp
        batch = batch.take([range(5), range(5, 8)][copy] if copy < 2 else [])
    result = engine.update(batch, PolicyGradient())
    experts = dict(engine.model.named_parameters())["model.layers.0.mlp.experts.down_proj"]
    return {"metrics": result, "weights": weights_of(engine), "experts": len(local_part(experts))}


@pytest.mark.parametrize(("mesh", "experts"), [(Mesh(dp=3), [2, 2, 2]), (Mesh(dp=2, cp=2), [2, 2, 2, 0])])
def test_ranks_train_like_one(tmp_path: Path, mesh: Mesh, experts: list[int]) -> None:
    path = write_model(tmp_path / "model", "qwen3_moe")
    (alone,) = run_ranks(1, train, tmp_path / "1", path, Mesh())
    ranks = run_ranks(mesh.size, train, tmp_path / "many", path, mesh)
    assert [rank["experts"] for rank in ranks] == experts
    for rank in ranks:
        assert largest_difference(alone["weights"], rank["weights"]) < 1e-10
        for name in ("update/expert_load_max", "update/expert_balance_loss"):
            assert rank["metrics"][name].value == pytest.approx(alone["metrics"][name].value, rel=1e-10)


def test_the_coefficient_is_the_jobs_or_the_models(tmp_path: Path) -> None:
    batch = a_batch([4, 4])

    def norm(coefficient: float | None, **config: object) -> float:
        path = write_config(tmp_path, "qwen3_moe", router_aux_loss_coef=0.1, **config)
        result = settings(router_aux_loss_coefficient=coefficient)
        engine = FSDPEngine(random_policy(path, torch.float64, 0), result, CPU)
        return engine.update(batch, Nothing())["update/gradient_norm"].value

    assert norm(None, output_router_logits=True) == norm(0.1) > 0
    assert norm(None) == norm(0.0, output_router_logits=True) == 0
    with pytest.raises(InvalidJob, match="routerAuxLossCoefficient: 0.1 is for models with experts"):
        FSDPEngine(random_policy(write_config(tmp_path), torch.float64, 0), settings(), CPU)


def test_an_adapter_beside_experts_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path, "qwen3_moe")
    with pytest.raises(InvalidJob, match="adapters of models with experts are not built"):
        FSDPEngine(
            random_policy(path, torch.float32, 0), TrainSettings(), CPU, adapter=Adapter(path, 2, 4.0, ("q_proj",))
        )
