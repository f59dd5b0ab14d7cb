"""From a rollout batch to trained weights, over the stages and the engine of a job: trajectories that were cut into
rows train as whole ones do. A later row has all before it as its prompt, as a conversation's has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.minibatches import mini_batch_of
from rljob_worker.databuffer.routes.repartition import balanced, row_costs
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.models import random_policy, random_value_model
from rljob_worker.engines.tests.builders import VOCABULARY, mesh_of_all, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.test_own_optimizer import declared
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, snapshot
from rljob_worker.metrics.scalars import Scalars, merge_all
from rljob_worker.rewards.results import RewardResult
from rljob_worker.stages.advantage import Advantage
from rljob_worker.stages.rewarding.reward import Reward
from rljob_worker.stages.scoring import LogProbs, Values
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.update import UpdateCritic, UpdatePolicy

STAGES: dict[str, Any] = {"LogProbs": LogProbs, "Values": Values, "Reward": Reward, "Advantage": Advantage}
UPDATES: dict[str, Any] = {"UpdatePolicy": UpdatePolicy, "UpdateCritic": UpdateCritic}
ALGORITHMS = {
    "critic": "{name: PPO, groupSize: 2, loss: {entropyCoefficient: 0.05}}",
    "sequence loss": "{name: GSPO, groupSize: 2}",
    "correction": "{name: GRPO, groupSize: 2, loss: {aggregation: SequenceMeanTokenSum}, "
    "correction: {method: TruncatedImportance, level: Sequence}}",
}
BOUND = 3
"""Rows of a trajectory."""
LENGTHS = [5, 9, 3, 7, 8, 4, 6, 2]
"""Response tokens of whole trajectories, two to a group."""
CUTS = [[], [3, 7], [1], [2, 4], [5], [], [2, 3], [1]]
"""Where the later rows of each begin."""
SETTINGS = replace(
    EXACT,
    optimizer="Momentum",
    betas=(0.0, 0.0),
    learning_rate=1.0,  # weights move by the gradient
    max_grad_norm=1e9,
    tokens_per_micro_batch=40,
)


class OddAttempts:
    """Rewards of trajectories by their number alone."""

    def begin(self, rows: list[dict[str, Any]]) -> None:
        """They are there when they are collected."""

    def collect(self, row_ids: list[int], *, exactly: bool = False) -> RewardResult:
        rewards = np.array([float(row_id // BOUND % 5) for row_id in row_ids])
        return RewardResult(rewards[:, None], rewards, {}, ())


def whole_trajectories() -> Batch:
    """A rollout batch of one row each; some response tokens are no actions."""
    random, number = np.random.default_rng(0), len(LENGTHS)
    prompts = [random.integers(2, VOCABULARY, random.integers(1, 6)) for _ in range(number // 2)]
    mask = np.where(random.random(sum(LENGTHS)) < 0.8, 1, 0).astype(np.uint8)
    columns = {
        "prompt_ids": Column.ragged([prompts[row // 2] for row in range(number)]),
        "response_ids": Column.from_lengths(random.integers(2, VOCABULARY, len(mask)), LENGTHS),
        "response_mask": Column.from_lengths(mask, LENGTHS),
        "rollout_log_probs": Column.from_lengths(np.log(random.uniform(0.01, 0.04, len(mask))), LENGTHS),
        "source": Column.strings(["sums"] * number),
        "answer": Column.strings(["7"] * number),
    }
    tokens = columns["prompt_ids"].lengths + LENGTHS
    return Batch.build(np.arange(number) * BOUND, np.arange(number) // 2, columns, tokens)


def cut(batch: Batch) -> Batch:
    """The trajectories of `batch`, cut at CUTS. The response of every later row begins with the token before its cut,
    which is no action there."""
    spans = [(at, *span) for at, cuts in enumerate(CUTS) for span in _spans(cuts, LENGTHS[at])]
    trajectory = np.array([at for at, _, _, _ in spans])
    columns = {name: batch[name].take(trajectory) for name in ("source", "answer")}
    prompts, responses = batch["prompt_ids"], batch["response_ids"]
    begun = [np.concatenate([prompts.row(at), responses.row(at)[:start]]) for at, _, start, _ in spans]
    columns["prompt_ids"] = Column.ragged(begun)
    for name in ("response_ids", "response_mask", "rollout_log_probs"):
        rows = [batch[name].row(at)[start:end].copy() for at, _, start, end in spans]
        if name == "response_mask":
            for row, (_, index, _, _) in zip(rows, spans, strict=True):
                row[: index > 0] = 0
        columns[name] = Column.ragged(rows, batch[name].dtype)
    tokens = columns["prompt_ids"].lengths + columns["response_ids"].lengths
    row_ids = trajectory * BOUND + np.array([index for _, index, _, _ in spans])
    return Batch.build(row_ids, trajectory // 2, columns, tokens)


def _spans(cuts: list[int], length: int) -> list[tuple[int, int, int]]:
    """Index, first token and end of each row of a trajectory."""
    starts, ends = [0, *(at - 1 for at in cuts)], [*cuts, length]
    return [(index, *span) for index, span in enumerate(zip(starts, ends, strict=True))]


def run_stages(
    rank: int, path: str, algorithm: str, batch: Batch, kinds: dict[str, Any], *, whole_groups: bool
) -> dict[str, Any]:
    """The job's stages of these kinds on the rows of one rank, which is dealt them as data buffers deal them."""
    plan = make_plan(f"algorithm={ALGORITHMS[algorithm]}", "data.batchSize=4", "training.miniBatchRows=4")
    plan = plan.model_copy(update={"rows_per_trajectory": BOUND})
    mesh = mesh_of_all()
    mine = batch.take(np.flatnonzero(_ranks(batch, plan, mesh.mesh.dp, whole_groups=whole_groups) == rank))
    with declared():
        resources = _resources(plan, path, mesh)
    context = StageContext(1, 3, plan.spec, str, mesh.sum, rank, mesh.mesh.dp, mesh)
    metrics: Scalars = {}
    for stage in plan.stages:
        if stage.run in kinds:
            result = kinds[stage.run](stage, resources).run(mine.select(stage.reads), context)
            mine, metrics = mine.with_columns(result.batch.columns), metrics | result.metrics
    weights = {name: snapshot(resources.train_engines[name]) for name in ("actor", "critic")}  # type: ignore[arg-type]
    return {"batch": mine, "metrics": metrics, **weights}


def _ranks(batch: Batch, plan: Plan, parts: int, *, whole_groups: bool) -> np.ndarray:
    number = plan.spec.num_mini_batches
    parts_of = mini_batch_of(batch.group_ids, step=1, batch_size=4, num_mini_batches=number, seed=plan.spec.seed)
    costs, options = row_costs(batch.num_tokens, "Tokens"), {"parts": parts, "rows_per_trajectory": BOUND}
    return balanced(batch.row_ids, batch.group_ids, costs, parts_of, whole_groups=whole_groups, **options)


def _resources(plan: Plan, path: str, mesh: Any) -> Resources:
    engine = partial(FSDPEngine, settings=SETTINGS, device=CPU, mesh=mesh)
    engines = {
        "actor": engine(random_policy(path, torch.float64, 0)),
        "reference": engine(random_policy(path, torch.float64, 7), settings=replace(SETTINGS, trainable=False)),
        "critic": engine(random_value_model(path, torch.float64, 0)),
    }
    return Resources(plan, engines, {}, rewards={"actor": OddAttempts()})


def trained(batch: Batch, algorithm: str, path: str, num_ranks: int, folder: Path) -> tuple[Scalars, list[Any]]:
    """Metrics of a step of a job on so many ranks, and what each rank ends with. Between advantages and updates rows
    change their ranks: the former need whole groups, the latter whole trajectories."""

    def on_ranks(batch: Batch, kinds: dict[str, Any], *, whole_groups: bool) -> list[dict[str, Any]]:
        work = partial(run_stages, path=path, algorithm=algorithm, batch=batch, kinds=kinds, whole_groups=whole_groups)
        return [work(0)] if num_ranks == 1 else run_ranks(num_ranks, work, folder / f"{len(kinds)} {len(batch)}")

    scored = on_ranks(batch, STAGES, whole_groups=True)
    whole = Batch.concat([rank["batch"] for rank in scored])
    updated = on_ranks(whole, UPDATES, whole_groups=False)
    return merge_all([rank["metrics"] for rank in [*scored, *updated]]), updated


def figures(metrics: Scalars) -> dict[str, float]:
    """What does not depend on time, or on how much fits into a micro-batch."""
    left_out = ("time/", "update/micro_batches", "critic/update/micro_batches")
    return {name: scalar.value for name, scalar in metrics.items() if not name.startswith(left_out)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_job_learns_alike_however_its_trajectories_are_cut(algorithm: str, path: str, tmp_path: Path) -> None:
    whole, rows = whole_trajectories(), cut(whole_trajectories())
    assert len(whole) == 8 and len(rows) == 17
    metrics, (one,) = trained(whole, algorithm, path, 1, tmp_path)
    for num_ranks in (1, 2):
        result, ranks = trained(rows, algorithm, path, num_ranks, tmp_path)
        assert figures(result) == pytest.approx(figures(metrics), abs=1e-12, rel=1e-12)
        for rank in ranks:
            assert_close(rank["actor"], one["actor"], 1e-12)
            assert_close(rank["critic"], one["critic"], 1e-12)
