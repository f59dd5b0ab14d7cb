"""SRPO's stage over the episodes of a step, on one rank and on several."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.catalogue.columns import PROGRESS_REWARDS
from rljob_api.tests.builders import make_plan
from rljob_worker.algorithms.tests.ranks import on_ranks
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import merge_all
from rljob_worker.stages.rewarding.progress_reward import ProgressReward
from rljob_worker.stages.stage import Reduce, Resources, StageContext, StageResult

JOB = (
    "algorithm={name: SRPO, groupSize: 4}",
    "rollout.simulator={run: 'my:arm', cameras: [front], maxSteps: 16, actionChunk: 8, video: {run: 'my:encode'}}",
    "data.batchSize=2",
)
PLAN = make_plan(*JOB)
# Two groups of four episodes, the same task twice: successes at 0 and 0.1 lie on both ranks, failures are 1 and 4 away
# from 0. The centre is 0.05, so that d is 0.95 and 3.95 and rewards are 0.6 sigmoid(5) and 0.6 sigmoid(-5). Episode 6
# failed otherwise: it is in no comparison. Episode 7 has no embedding.
SUCCESS = [1, 0, 0, 0, 1, 0, 0, 0]
PLACES = [0.0, 1.0, 4.0, 4.0, 0.1, 1.0, 50.0, None]
KEPT = [1, 1, 1, 1, 1, 1, 0, 1]
NEAR, FAR = 0.6 * 0.9933071490757153, 0.6 * 0.0066928509242848554


def episodes(which: range, dimensions: int = 2) -> Batch:
    """Two rows each; the embedding is on the second."""
    on_rows = [at for at in which for _ in range(2)]
    row_ids = np.array([2 * at + index for at in which for index in range(2)])
    embeddings = [
        [] if index == 0 or PLACES[at] is None else [PLACES[at]] + [0.0] * (dimensions - 1)
        for at in which
        for index in range(2)
    ]
    columns = {
        "success": Column.fixed(np.array(SUCCESS, np.uint8)[on_rows]),
        "kept": Column.fixed(np.array(KEPT, np.uint8)[on_rows]),
        "task_id": Column.fixed(np.full(len(on_rows), 77)),
        "video_embedding": Column.ragged([np.array(item, np.float32) for item in embeddings], "float32"),
    }
    return Batch.build(row_ids, np.array(on_rows) // 4, columns)


def exchanged(rank: int, size: int, reduce: Reduce, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What `ProcessMesh.exchange` does, by sums: each rank's parts have a place of their own in a table."""
    number = int(reduce(torch.tensor(float(sum(map(len, parts))))))
    lengths = torch.zeros(size, size, dtype=torch.int64)
    lengths[rank] = torch.tensor([len(part) for part in parts])
    lengths = reduce(lengths)
    table = parts[0].new_zeros(size, size, number, *parts[0].shape[1:])
    for target, part in enumerate(parts):
        table[rank, target, : len(part)] = part
    table = reduce(table)
    return [table[source, rank, : lengths[source, rank]] for source in range(size)]


def on_all_ranks(batches: list[Batch]) -> list[StageResult]:
    """The stage on as many ranks as there are batches."""

    def result_of(rank: int, reduce: Reduce) -> StageResult:
        exchange = partial(exchanged, rank, len(batches), reduce)
        context = StageContext(1, 0, PLAN.spec, str, reduce, rank, len(batches), exchange)
        return ProgressReward(PLAN.stage("progress"), Resources(PLAN, {}, {})).run(batches[rank], context)

    return on_ranks(len(batches), result_of)


@pytest.mark.parametrize(
    "parts",
    [[range(8)], [range(4), range(4, 8)], [range(4, 8), range(4)], [range(2), range(2, 5), range(5, 5), range(5, 8)]],
)
def test_successes_on_any_rank_are_what_failures_are_compared_with(parts: list[range]) -> None:
    results = on_all_ranks([episodes(part) for part in parts])
    rewards = {at: row for part, result in zip(parts, results, strict=True) for at, row in of_episodes(part, result)}
    expected = [1, NEAR, FAR, FAR, 1, NEAR, 0, 0]
    assert [rewards[at] for at in range(8)] == pytest.approx(expected, abs=1e-7)  # 0.1 is a float32
    metrics = {name: scalar.value for name, scalar in merge_all([result.metrics for result in results]).items()}
    assert metrics["progress/reward_of_failures"] == pytest.approx((2 * NEAR + 2 * FAR) / 4, abs=1e-7)
    assert metrics["progress/compared_fraction"] == pytest.approx(4 / 7)
    assert metrics["progress/missing_fraction"] == pytest.approx(1 / 7)
    # two successes are always 2 standard deviations apart, so that their mean is the centre
    assert (metrics["progress/plain_tasks"], metrics["progress/unclustered_tasks"]) == (0, 1)


def of_episodes(part: range, result: StageResult) -> list[tuple[int, Any]]:
    """Rewards of a rank's episodes, which both rows of each have."""
    values = result.batch[PROGRESS_REWARDS].values
    assert (values[::2] == values[1::2]).all()
    return list(zip(part, values[::2].tolist(), strict=True))


def test_embeddings_of_several_sizes_are_refused() -> None:
    with pytest.raises(InvalidJob, match="2 and 3 dimensions"):
        on_all_ranks([episodes(range(4)), episodes(range(4, 8), dimensions=3)])


def test_advantages_are_those_of_the_rewards_by_video() -> None:
    assert PLAN.stage("advantage").rename == {"rewards": PROGRESS_REWARDS}
    assert {"success", "video_embedding", "task_id", "kept"} <= set(PLAN.stage("progress").reads)
    assert {"video_embedding", "task_id"} <= set(PLAN.stage("rollout").writes)
