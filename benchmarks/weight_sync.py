"""Weights from the ranks that train to those that sample, in one process and between processes on one machine.

    python benchmarks/weight_sync.py [--megabytes 64 512] [--rounds 3] [--model 1024x16] [--sources 1 2 4] [--write]
    python benchmarks/weight_sync.py --links [--megabits 400] [--sources 1 2 4 8] [--tensor 8]    as root

`in process` is one worker that trains and generates (DP 1): seconds of a sync beside those of one copy of the weights
in memory, and the most private memory that it took for it beside the largest bucket, for a Qwen3 of hidden size x
layers. Between processes every host that trains or samples is one worker, over data buffers with a data buffer beside
it; seconds are medians from the first tensor written to the last one copied by the slowest receiver; GB/s counts the
model once. N sources are N training hosts that each send their part of one model to one host that samples, beside N
TCP connections over loopback that move as many bytes. `copies` is what one source and one receiver do to the bytes, on
one core each. `1 -> 4` is one training host and four that sample. Memory is the most private memory that any one
process held beyond what it had before; glibc gives back what is freed, as it does not in a worker of a job, which keeps
it for the next forward pass. --write puts the tables into docs/benchmarks.md.

With --links every data buffer has a network namespace behind a token bucket: sources of `megabits`, and one receiver of
six times that. N sources are N training hosts that each send their part of one model; `of N links` is the speed of N
sources by N times that of one, `of the receiver's` that by the speed of the receiver's link. With --tensor the receiver
is as many workers, each of which keeps a slice. CPU is that of all data
buffers together, in cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import docs_section
from synced_weights.ceilings import copies, loopback
from synced_weights.in_process import CASES, measure, write_config
from synced_weights.links import show_links
from synced_weights.team import measure as measure_team

SHAPES = ((1, 4), (4, 4))
"""Hosts that train, hosts that sample, beside those of `--sources`."""
HEADS = {
    "in process": "| weights, in one process | MB | s | a copy in memory, s | times it | more memory, MB | buckets |",
    "between": "| | MB | s | GB/s | of loopback | private MB |",
}


def in_process_rows(size: str, rounds: int) -> Iterator[list[str]]:
    hidden, layers = map(int, size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder / "model", hidden, layers)
        for index, case in enumerate(CASES):
            result = measure(folder / "model", case, rounds, folder / str(index))
            yield [
                case.name,
                f"{result.num_bytes / 1e6:.0f}",
                f"{result.seconds:.4f}",
                f"{result.memcpy_seconds:.4f}",
                f"{result.seconds / result.memcpy_seconds:.2f}",
                f"{result.extra_bytes / 1e6:.0f}",
                f"{result.extra_bytes / result.bucket_bytes:.2f}",
            ]


def between_rows(num_bytes: int, rounds: int, sources: list[int]) -> Iterator[list[str]]:
    def row(name: str, seconds: float, ceiling: float, memory: int | None = None) -> list[str]:
        speeds = [f"{num_bytes / 1e6:.0f}", f"{seconds:.3f}", f"{num_bytes / seconds / 1e9:.2f}"]
        return [name, *speeds, f"{ceiling / seconds:.2f}", "" if memory is None else f"{memory / 1e6:.0f}"]

    one = loopback(num_bytes, rounds)
    for name, seconds in copies(num_bytes, rounds).items():
        yield row(name, seconds, one)
    for number in sources:
        ceiling = one if number == 1 else loopback(num_bytes, rounds, number)
        yield row(f"ceiling: {number} over loopback TCP", ceiling, ceiling)
        for transport, name in (("DataBuffer", "data buffers"), ("Collective", "broadcasts (gloo)")):
            yield row(f"{number} → 1, {name}", *_with(ceiling, measure_team(number, 1, num_bytes, rounds, transport)))
    for trains, samples in SHAPES:
        yield row(f"{trains} → {samples}, data buffers", *_with(one, measure_team(trains, samples, num_bytes, rounds)))


def _with(ceiling: float, result: tuple[float, int]) -> tuple[float, float, int]:
    return result[0], ceiling, result[1]


def shown(head: str, rows: Iterator[list[str]]) -> list[list[str]]:
    """A table, each line printed as it is found; its rows."""
    print("\n".join(headed(head)), flush=True)
    result = []
    for cells in rows:
        result.append(cells)
        print(line_of(cells), flush=True)
    return result


def headed(head: str) -> list[str]:
    return [head, "|---|" + "--:|" * (head.count("|") - 2)]


def line_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def side_by_side(tables: dict[int, list[list[str]]]) -> list[str]:
    """What was found between processes, a column group for each number of megabytes: seconds, of loopback, memory."""
    head = "| |" + "".join(f" {table[0][1]} MB: s | of loopback | private MB |" for table in tables.values())
    names = [cells[0] for cells in next(iter(tables.values()))]
    result = [[name] + [rows[at][i] for rows in tables.values() for i in (2, 4, 5)] for at, name in enumerate(names)]
    return [*headed(head), *map(line_of, result)]


def measured(options: argparse.Namespace) -> list[str]:
    """Prints every table; those of docs/benchmarks.md."""
    head = (
        f"Medians of {options.rounds} rounds after a first one; load before {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores."
    )
    print(f"{head}\n")
    alone = shown(HEADS["in process"], in_process_rows(options.model, options.rounds))
    between = {}
    for size in options.megabytes:
        print()
        between[size] = shown(HEADS["between"], between_rows(size << 20, options.rounds, options.sources))
    return [head, "", *headed(HEADS["in process"]), *map(line_of, alone), "", *side_by_side(between)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="1024x16")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--megabits", type=float, default=400)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.links:
        show_links(options.sources, options.megabytes[0] << 20, options.rounds, options.megabits, options.tensor)
        return
    result = measured(options)
    if options.write:
        docs_section.write("weights", result)


if __name__ == "__main__":
    main()
