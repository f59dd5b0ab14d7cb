"""Ranks that share their rows: leaders run rewards and speak for their copy, whatever a peer would have found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.builders import make_plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.parallel.mesh import ProcessMesh, build_meshes
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, PeerLost
from rljob_worker.metrics.scalars import mean, merge_all, total
from rljob_worker.rewards.results import Missed, RewardResult
from rljob_worker.stages.rollout import Rollout
from rljob_worker.stages.sample import Sample
from rljob_worker.stages.scoring import LogProbs, Values
from rljob_worker.stages.stage import Alone, Resources, StageContext
from rljob_worker.stages.tests.test_sample import (
    DAPO,
    REMAX,
    RESAMPLED,
    WARM_UP,
    FakeDataset,
    Ranks,
    answering_engine,
    contents,
    fake_rewards,
)
from rljob_worker.stages.update import UpdateCritic, UpdatePolicy

ALGORITHMS = {"PPO": WARM_UP, "DAPO": DAPO, "ReMax": REMAX, "PFPPO": RESAMPLED}
STEPS = (1, 2, 3)
SQUARE, ONE_COPY = Mesh(dp=2, tp=2), Mesh(tp=4)


class LateRewards:
    """Every reward is 0: each row of this rank alone timed out."""

    def __init__(self) -> None:
        self.num_scored = 0

    def begin(self, rows: list[dict[str, Any]]) -> None:
        self.num_scored += len(rows)

    def collect(self, row_ids: list[int], *, exactly: bool = False) -> RewardResult:
        late = tuple(Missed("fate", i, "too late") for i in range(len(row_ids)))
        metrics = {"reward/timeouts_total": total(len(row_ids))}
        return RewardResult(np.zeros((len(row_ids), 1)), np.zeros(len(row_ids)), metrics, late)


class FailingRewards:
    def begin(self, rows: list[dict[str, Any]]) -> None:
        """Goes wrong later."""

    def collect(self, row_ids: list[int], *, exactly: bool = False) -> RewardResult:
        raise BadData("the reward raised")


def context_of(mesh: ProcessMesh, plan: Any, step: int) -> StageContext:
    return StageContext(
        step=step,
        seed=3,
        job=plan.spec,
        decode=lambda ids: " ".join(map(str, ids)),
        reduce=mesh.sum,
        exchange=mesh.exchange,
        dp_rank=mesh.mesh.dp_rank(mesh.rank),
        dp_size=mesh.mesh.dp,
        copy=mesh,
    )


def sampling_stage(algorithm: str, rewards: Any) -> tuple[Any, Sample]:
    plan = make_plan(algorithm, "data.batchSize=4")
    resources = Resources(
        plan, {}, {"actor": answering_engine()}, datasets={"actor": FakeDataset()}, rewards={"actor": rewards}
    )
    return plan, Sample(plan.stage("sample").model_copy(update={"mesh": SQUARE}), resources)


def sample_in_copies(rank: int) -> dict[str, Any]:
    meshes = build_meshes([SQUARE, ONE_COPY], rank, torch.device("cpu"), deadline_seconds=TEST_TIMEOUT_SECONDS)
    mesh = meshes[SQUARE]
    outcome: dict[str, Any] = {}
    late = LateRewards()
    for name, algorithm in ALGORITHMS.items():
        plan, stage = sampling_stage(algorithm, fake_rewards() if mesh.is_leader else late)
        results = [stage.run(None, context_of(mesh, plan, step)) for step in STEPS]
        outcome[name] = [(result.batch, result.metrics, result.samples) for result in results]
    outcome["scored by a peer"] = late.num_scored
    plan, stage = sampling_stage(DAPO, FailingRewards() if rank == 0 else late)
    try:
        stage.run(None, context_of(meshes[ONE_COPY], plan, 1))
    except (BadData, PeerLost) as error:
        outcome["failed"] = type(error).__name__
    return outcome


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Four ranks, two and two of them a copy."""
    return run_ranks(4, sample_in_copies, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_copies_of_two_ranks_make_the_batches_of_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    two = Ranks(ALGORITHMS[name], 2)
    for index, step in enumerate(STEPS):
        batch, figures = two.run(step)
        batches = [rank[name][index][0] for rank in ranks]
        assert contents(batches[0]) == contents(batches[1]) and contents(batches[2]) == contents(batches[3])
        assert contents(Batch.concat([batches[0], batches[2]])) == contents(batch)
        merged = merge_all([rank[name][index][1] for rank in ranks])
        assert {key: scalar.value for key, scalar in merged.items() if not key.startswith("time/")} == figures


def test_rows_are_counted_and_shown_by_leaders_only(ranks: list[dict[str, Any]]) -> None:
    for peer in (ranks[1], ranks[3]):
        assert peer["scored by a peer"] == 0
        for _, metrics, samples in peer["DAPO"]:
            assert samples == []
            assert set(metrics) == {"time/prompts_seconds", "time/generation_seconds", "time/reward_seconds"}
    assert ranks[0]["DAPO"][0][2] and "tokens/total" in ranks[0]["DAPO"][0][1]


def test_an_error_of_a_leader_ends_the_ranks_that_wait_for_it(ranks: list[dict[str, Any]]) -> None:
    assert [rank["failed"] for rank in ranks] == ["BadData", "PeerLost", "PeerLost", "PeerLost"]


# ---- stages whose rows an engine works on


class Peer(Alone):
    is_leader = False


class FakeTrainEngine:
    """Log-probs and values of 0; an update says what it did."""

    def log_probs(self, batch):
        return Column.from_lengths(np.zeros(batch["response_ids"].lengths.sum(), np.float32), [2, 1])

    values = log_probs

    def update(self, batch, objective, *, reference=None):
        return {"update/loss": mean(0.5), "update/skipped_total": total(0.0), "time/forward_seconds": mean(1.0)}


def rows() -> Batch:
    tokens = Column.from_lengths(np.array([5, 6, 7]), [2, 1])
    ones = Column.from_lengths(np.ones(3, np.float32), [2, 1])
    masks = Column.from_lengths(np.ones(3, np.uint8), [2, 1])
    columns = {"prompt_ids": tokens, "response_ids": tokens, "response_mask": masks, "loss_mask": masks}
    columns |= {name: ones for name in ("advantages", "returns", "values", "rollout_log_probs", "old_log_probs")}
    return Batch.build(np.arange(2), np.zeros(2, np.int64), columns)


PPO_PLAN = make_plan("algorithm={name: PPO, groupSize: 4}", "data.batchSize=4")
WARM_PLAN = make_plan("algorithm={name: PPO, groupSize: 4, critic: {warmupSteps: 1}}", "data.batchSize=4")


@pytest.mark.parametrize(
    ("kind", "run", "counted", "plan"),
    [
        (Rollout, "Rollout", "tokens/total", PPO_PLAN),
        (LogProbs, "LogProbs", None, PPO_PLAN),
        (Values, "Values", "value/mean", PPO_PLAN),
        (UpdatePolicy, "UpdatePolicy", "update/loss", PPO_PLAN),
        (UpdatePolicy, "UpdatePolicy", "update/warmup_total", WARM_PLAN),
        (UpdateCritic, "UpdateCritic", "critic/update/loss", PPO_PLAN),
    ],
)
def test_a_peer_speaks_of_its_time_only(kind: Any, run: str, counted: str | None, plan: Any) -> None:
    train = dict.fromkeys(["actor", "critic", "reference"], FakeTrainEngine())
    resources = Resources(plan, train, {"actor": answering_engine()}, datasets={"actor": FakeDataset()})
    stage = next(stage for stage in plan.stages if stage.run == run)

    def metrics(copy: Alone) -> set[str]:
        context = StageContext(
            step=1, seed=3, job=plan.spec, decode=str, reduce=lambda x: x, dp_rank=0, dp_size=1, copy=copy
        )
        return set(kind(stage, resources).run(rows(), context).metrics)

    leader, peer = metrics(Alone()), metrics(Peer())
    assert counted is None or counted in leader
    assert peer == {name for name in leader if name.startswith("time/")}
