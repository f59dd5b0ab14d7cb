"""Rows from one number of ranks to another: how even the shares are, and what deciding costs.

    python benchmarks/repartition.py [--seeds 20] [--repeats 5]

Each cell: the largest share over max(mean, largest row or group), at worst over the seeds; milliseconds of CPU time of
one thread for the decision, least to most over the repeats. Lengths are log-normal: prompts around 300 tokens up to
1,024, responses around 1,500 up to 31,744. Nothing here talks to another process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.routes import repartition

GROUP_SIZE, GROUPS_PER_RANK = 8, 16


def lengths(num_groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the prompt [groups] and of the response [groups * GROUP_SIZE]."""
    rng = np.random.default_rng(seed)
    prompts = rng.lognormal(np.log(300), 0.5, num_groups)
    responses = rng.lognormal(np.log(1500), 0.8, num_groups * GROUP_SIZE)
    return np.clip(prompts, 1, 1024).astype(np.int64), np.clip(responses, 1, 31744).astype(np.int64)


def index_of(num_groups: int, seed: int) -> RowIndex:
    prompts, responses = lengths(num_groups, seed)
    rows = np.arange(len(responses), dtype=np.int64)
    return RowIndex(rows, rows // GROUP_SIZE, np.repeat(prompts, GROUP_SIZE) + responses)


def assign(index: RowIndex, parts: int, balance: str, whole_groups: bool) -> np.ndarray:
    costs = repartition.row_costs(index.num_tokens, balance)
    mini_batches = np.zeros(len(index), np.int64)
    return repartition.balanced(
        index.row_ids, index.group_ids, costs, mini_batches, parts=parts, whole_groups=whole_groups
    )


def unevenness(index: RowIndex, parts: int, balance: str, whole_groups: bool) -> float:
    """Largest cost of a rank over the larger of the mean and the largest row or group."""
    costs = repartition.row_costs(index.num_tokens, balance)
    loads = np.bincount(assign(index, parts, balance, whole_groups), costs, minlength=parts)
    units = np.bincount(index.group_ids, costs) if whole_groups else costs
    return float(loads.max() / max(loads.mean(), units.max()))


def report(seeds: int, repeats: int) -> None:
    """How even, at worst over the seeds, and what the decision takes: by cost and by what may not be split."""
    cases = [(balance, whole) for balance in ("Tokens", "Attention") for whole in (False, True)]
    heads = ["ranks", "rows", *(f"{balance}, {'groups' if whole else 'rows'}" for balance, whole in cases)]
    print(f"| {' | '.join(heads)} |\n|---|{'--:|' * (len(heads) - 1)}")
    for made, used in ((8, 4), (4, 8), (6, 4), (2, 2), (1024, 1024)):
        num_groups = GROUPS_PER_RANK * max(made, used)
        index, tried = index_of(num_groups, 0), range(seeds if used < 1024 else 1)
        cells = [f"{made} → {used}", f"{len(index):,}"]
        for balance, whole in cases:
            worst = max(unevenness(index_of(num_groups, seed), used, balance, whole) for seed in tried)
            taken = measured(lambda i=index, u=used, b=balance, w=whole: assign(i, u, b, w), repeats)
            cells.append(f"{worst:.4f}, {taken}")
        print(f"| {' | '.join(cells)} |", flush=True)


def measured(call: Callable[[], object], repeats: int) -> str:
    seconds = [timed(call) for _ in range(repeats)]
    return f"{min(seconds) * 1e3:.1f}–{max(seconds) * 1e3:.1f} ms"


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report(options.seeds, options.repeats)


if __name__ == "__main__":
    main()
