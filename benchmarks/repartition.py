"""Rows from one number of ranks to another: how even the shares are, what deciding costs, and what copying does.

    python benchmarks/repartition.py [--seeds 20] [--repeats 5]

Lengths are log-normal: prompts around 300 tokens up to 1,024, responses around 1,500 up to 31,744. Seconds are of CPU
time of one thread, least to most over the repeats. Nothing here talks to another process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.routes import repartition
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.row_index import RowIndex

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


def report_shares(seeds: int, repeats: int) -> None:
    """How even, at worst over the seeds, and what the decision takes."""
    print("| ranks | rows | cost | unit | worst max / max(mean, largest unit) | decision |")
    print("|---|--:|---|---|--:|--:|")
    for made, used in ((8, 4), (4, 8), (6, 4), (2, 2), (1024, 1024)):
        num_groups = GROUPS_PER_RANK * max(made, used)
        for balance in ("Tokens", "Attention"):
            for whole in (False, True):
                tried = range(seeds if used < 1024 else 1)
                worst = max(unevenness(index_of(num_groups, seed), used, balance, whole) for seed in tried)
                index = index_of(num_groups, 0)
                taken = measured(lambda i=index, u=used, b=balance, w=whole: assign(i, u, b, w), repeats)
                unit = "group" if whole else "row"
                print(f"| {made} → {used} | {len(index):,} | {balance} | {unit} | {worst:.4f} | {taken} |")


def batch_of(index: RowIndex, prompts: np.ndarray, responses: np.ndarray) -> Batch:
    heads = np.unique(index.heads())
    tokens = int(responses.sum())
    prompt_ids = Column.from_lengths(np.zeros(prompts.sum(), np.int64), prompts)
    columns = {
        "prompt_ids": prompt_ids.per_group_at(heads, len(index)),
        "response_ids": Column.from_lengths(np.zeros(tokens, np.int64), responses),
        "response_mask": Column.from_lengths(np.ones(tokens, np.uint8), responses),
        "rollout_log_probs": Column.from_lengths(np.zeros(tokens, np.float32), responses),
    }
    return Batch.of(index, columns)


def stored(batch: Batch) -> Views:
    contents = segment.contents_of(batch)
    memory = np.zeros(contents.num_bytes, np.uint8)
    segment.write(memory, 0, contents, batch)
    return segment.views(memory, 0, contents)


def report_copies(repeats: int) -> None:
    """Parts of all producers cut into the shares of all consumers and put together: gather, and copy to its place."""
    print("\n| ranks | MB | whole groups | all shares | MB/s |")
    print("|---|--:|---|--:|--:|")
    for made, used in ((8, 4), (4, 8), (6, 4), (2, 2)):
        num_groups = GROUPS_PER_RANK * max(made, used)
        index, (prompts, responses) = index_of(num_groups, 0), lengths(num_groups, 0)
        whole_batch = batch_of(index, prompts, responses)
        part_of = repartition.by_ordinal(index.group_ids, parts=made, batch_size=num_groups)
        parts = [stored(whole_batch.take(np.flatnonzero(part_of == part))) for part in range(made)]
        for whole in (False, True):
            share_of = assign(index, used, "Tokens", whole)
            shares = [share_of[part.index.row_ids] for part in parts]
            memory = np.zeros(segment.contents_of(whole_batch).num_bytes * 4, np.uint8)

            def run(parts=parts, shares=shares, used=used, memory=memory) -> int:
                return sum(assemble(parts, shares, share, memory) for share in range(used))

            num_bytes = run()
            seconds = min(timed(run) for _ in range(repeats))
            megabytes = num_bytes / 1e6
            cells = (f"{made} → {used}", f"{megabytes:.1f}", "yes" if whole else "no", measured(run, repeats))
            print(f"| {' | '.join(cells)} | {megabytes / seconds:,.0f} |")


def assemble(parts: list[Views], shares: list[np.ndarray], share: int, memory: np.ndarray) -> int:
    """One share of all parts; returns its bytes."""
    chosen = [np.flatnonzero(of_part == share) for of_part in shares]
    headers = [Header.of(part, rows) for part, rows in zip(parts, chosen, strict=True)]
    arrangement = arrange(headers, "a->b")
    target = segment.views(memory, 0, arrangement.contents)
    arrangement.write_index(target)
    for part, rows, header, targets in zip(parts, chosen, headers, arrangement.targets, strict=True):
        landing = Landing(header, target, targets, "rows of a host")
        for record, checksum in stream.stream([(part, rows)], lambda seconds: None).records:
            landing.take(record, checksum)
        landing.end()
    return arrangement.contents.num_bytes


def report_groups() -> None:
    """Bytes of an edge whose groups have their prompt once, and with a copy of it in every row."""
    print("\n| response tokens | per row | per group |")
    print("|--:|--:|--:|")
    num_groups, prompt_tokens = 64, 1024
    rows = np.arange(num_groups * GROUP_SIZE, dtype=np.int64)
    for response_tokens in (256, 1024):
        prompts, responses = np.full(num_groups, prompt_tokens), np.full(len(rows), response_tokens)
        index = RowIndex(rows, rows // GROUP_SIZE, np.full(len(rows), prompt_tokens + response_tokens))
        batch = batch_of(index, prompts, responses).select(["prompt_ids", "response_ids"])
        repeated = Batch.of(index, {name: batch[name] for name in batch.columns})
        before, after = (segment.contents_of(each).num_bytes for each in (repeated, batch))
        print(f"| {response_tokens:,} | {before:,} | {after:,} |")


def report_takes(repeats: int) -> None:
    """The gather behind every take, merge and message."""
    print("\n| take | CPU |")
    print("|---|--:|")
    rng = np.random.default_rng(0)
    for num_rows, row_length, dtype in ((8, 4 << 20, np.uint8), (10_000, 1024, np.int64), (100_000, 8, np.int64)):
        column = Column.from_lengths(np.zeros(num_rows * row_length, dtype), np.full(num_rows, row_length))
        rows = rng.permutation(num_rows)
        taken = measured(lambda c=column, r=rows: c.take(r), repeats)
        print(f"| {num_rows:,} rows of {row_length:,} {np.dtype(dtype).name}, shuffled | {taken} |")


def measured(call: Callable[[], object], repeats: int) -> str:
    seconds = [timed(call) for _ in range(repeats)]
    return f"{min(seconds) * 1e3:.1f}–{max(seconds) * 1e3:.1f} ms"


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report_shares(options.seeds, options.repeats)
    report_copies(options.repeats)
    report_groups()
    report_takes(options.repeats)


if __name__ == "__main__":
    main()
