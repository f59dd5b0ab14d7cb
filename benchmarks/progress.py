"""SRPO's comparison of the videos of 512 episodes on one rank, besides encoding them.

    python benchmarks/progress.py

Embeddings of 1,408 dimensions, half of the episodes successful, of one task and of ten. Prints the median of seven
runs of the stage, in seconds of a core and on the clock.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.stages.rewarding.progress_reward import ProgressReward
from rljob_worker.stages.stage import Resources, StageContext

EPISODES, ROWS, DIMENSIONS, RUNS = 512, 8, 1408, 7
VIDEO = "cameras: [front], video: {run: 'my:encode'}"
PLAN = make_plan(
    "algorithm={name: SRPO, groupSize: 8}",
    f"rollout.simulator={{run: 'my:arm', maxSteps: {8 * ROWS}, actionChunk: 8, {VIDEO}}}",
    "data.batchSize=64",
)


def episodes(num_tasks: int) -> Batch:
    """Rows of all episodes; the embedding is on the last one of each."""
    rng, rows = np.random.default_rng(0), np.arange(EPISODES * ROWS)
    videos = [rng.normal(size=DIMENSIONS if row % ROWS == ROWS - 1 else 0).astype(np.float32) for row in rows]
    columns = {
        "success": Column.fixed(np.repeat(rng.random(EPISODES) < 0.5, ROWS).astype(np.uint8)),
        "kept": Column.fixed(np.ones(len(rows), np.uint8)),
        "task_id": Column.fixed(np.repeat(np.arange(EPISODES) % num_tasks, ROWS)),
        "video_embedding": Column.ragged(videos, "float32"),
    }
    return Batch.build(rows, rows // (8 * ROWS), columns)


def main() -> None:
    for num_tasks in (1, 10):
        batch, stage = episodes(num_tasks), ProgressReward(PLAN.stage("progress"), Resources(PLAN, {}, {}))
        seconds = []
        for _ in range(RUNS):
            core, clock = time.process_time(), time.perf_counter()
            stage.run(batch, StageContext(1, 0, PLAN.spec, str, lambda tensor: tensor, 0, 1))
            seconds.append((time.process_time() - core, time.perf_counter() - clock))
        of_core, on_clock = (statistics.median(column) for column in zip(*seconds, strict=True))
        print(f"{num_tasks} tasks: {of_core:.3f} s of a core, {on_clock:.3f} s")


if __name__ == "__main__":
    main()
