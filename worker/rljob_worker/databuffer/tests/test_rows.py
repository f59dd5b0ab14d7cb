"""Rows from producers to consumers through real sockets: by ordinal, balanced, groups whole, tensor-parallel peers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rljob_worker.batch import Batch
from rljob_worker.databuffer.tests.gang import in_process, part, same, two_stages

COLUMNS = ("ids", "score")


def exchange(gang, step: int, made: int, used: int) -> list[Batch]:
    """Every rank of `a` puts its rows, every rank of `b` gets."""
    for rank in range(made):
        gang.client("rollout", rank).put(step, "a->b", part(gang.plan, step, rank, made))
    with ThreadPoolExecutor(used) as pool:
        clients = [gang.client("train", rank) for rank in range(used)]
        return list(pool.map(lambda client: client.get(step, "a->b"), clients))


def test_rows_by_ordinal_reach_the_rank_that_owns_them(tmp_path: Path):
    plan = two_stages((1, 2), (1, 4))
    with in_process(plan, tmp_path) as gang:
        for step in (1, 2):
            got = exchange(gang, step, made=2, used=4)
            for rank, batch in enumerate(got):
                assert same(batch, part(plan, step, rank, 4).select(COLUMNS))


@pytest.mark.parametrize("made, used", [((2, 1), (3, 1)), ((3, 2), (1, 1)), ((1, 1), (2, 2))])
def test_several_hosts_by_ordinal(tmp_path: Path, made, used):
    plan = two_stages(made, used)
    with in_process(plan, tmp_path) as gang:
        got = exchange(gang, 1, made[0] * made[1], used[0] * used[1])
        for rank, batch in enumerate(got):
            assert same(batch, part(plan, 1, rank, len(got)).select(COLUMNS))


@pytest.mark.parametrize("needs_groups", [False, True])
def test_a_balanced_edge_gives_every_row_once(tmp_path: Path, needs_groups: bool):
    plan = two_stages((2, 1), (3, 1), balance="Tokens", needs_groups=needs_groups)
    with in_process(plan, tmp_path) as gang:
        for step in (1, 2, 3):
            got = exchange(gang, step, made=2, used=3)
            assert same(Batch.concat(got), part(plan, step, 0, 1).select(COLUMNS))
            if needs_groups:
                groups = [set(batch.group_ids.tolist()) for batch in got]
                assert not groups[0] & groups[1] and not groups[1] & groups[2]
            tokens = [int(batch.num_tokens.sum()) for batch in got]
            largest = 5 * (2 if needs_groups else 1)  # rows have at most 5 tokens, groups two rows
            assert max(tokens) <= np.mean(tokens) + largest
