"""The job of the gang: what is put at every step, and what must come out of it, both functions of the step number."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.tests.gang import group, plan_of, stage

ROWS_EDGE, WEIGHTS_EDGE = "a->b", "weights/actor"
PRODUCERS, CONSUMERS = (2, 1), (1, 2)
"""(hosts, workers per host) of the groups rollout and train."""
GROUPS, GROUP_SIZE = 32, 4
WEIGHTS_EVERY = 10
CHUNK_BYTES = 60_000
COMMIT_EVERY = 10

Bytes = NDArray[np.uint8]


def plan_for(memory: str, spill: str) -> Plan:
    """Balanced rows from two hosts to the two ranks of a third, and weights back from both. spill: empty for none."""
    made, used = (hosts * workers for hosts, workers in (PRODUCERS, CONSUMERS))
    return plan_of(
        [group("rollout", *PRODUCERS, ["a"]), group("train", *CONSUMERS, ["b"])],
        [stage("a", "rollout", Mesh(dp=made)), stage("b", "train", Mesh(dp=used), "Tokens")],
        {ROWS_EDGE: ["ids", "score"]},
        batch_size=GROUPS,
        group_size=GROUP_SIZE,
        memory=memory,
        spill={"limit": spill} if spill else None,
        deadline_seconds=60.0,
        weights=("train", "rollout"),
    )


def rows_of(step: int, groups: range) -> Batch:
    """Rows of some groups; lengths are log-normal, around 500 tokens and at most 4,096."""
    row_ids = np.arange(groups.start * GROUP_SIZE, groups.stop * GROUP_SIZE)
    random = np.random.default_rng([step, groups.start])
    sizes = np.clip(random.lognormal(6.2, 0.8, len(row_ids)).astype(int), 1, 4096)
    ids = [row * 100_003 + np.arange(size) for row, size in zip(row_ids, sizes, strict=True)]
    columns = {"ids": Column.ragged(ids, "int64"), "score": Column.fixed(row_ids.astype(np.float32) / 2)}
    return Batch.build(row_ids.tolist(), (row_ids // GROUP_SIZE).tolist(), columns, sizes.tolist())


def part_of(step: int, rank: int) -> Batch:
    """What a rank of the group rollout makes at a step."""
    first, count = (step - 1) * GROUPS, GROUPS // (PRODUCERS[0] * PRODUCERS[1])
    return rows_of(step, range(first + rank * count, first + (rank + 1) * count))


def digest(batch: Batch) -> int:
    """Digest of all rows, independent of their order: the sum of XXH3 over each row's ids and values, in 64 bits."""
    ids, score, total = batch["ids"], batch["score"], 0
    for row, row_id in enumerate(batch.row_ids):
        whole = xxhash.xxh3_64(np.ascontiguousarray(ids.values[ids.offsets[row] : ids.offsets[row + 1]]).data)
        whole.update(score.values[row : row + 1].tobytes() + int(row_id).to_bytes(8, "little"))
        total += whole.intdigest()
    return total % (1 << 64)


def expected(step: int) -> tuple[int, int]:
    """(rows, digest) of a whole step."""
    parts = [part_of(step, rank) for rank in range(PRODUCERS[0] * PRODUCERS[1])]
    return sum(map(len, parts)), sum(map(digest, parts)) % (1 << 64)


def chunk_of(version: int, source: int) -> Bytes:
    """The weights that a rank of the group train sends."""
    return np.random.default_rng([version, source]).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)
