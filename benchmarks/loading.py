"""Prompts from a disk and from an S3 server: rows per second, what a step waits for them, and private memory by size.

    python benchmarks/loading.py [--rows 1000] [--times 1 10 100 400] [--kinds JSON\ lines Parquet] [--stores disk S3]
        [--repeats 3] [--write]

Data sets of so many times so many rows, as JSON lines and as Parquet (1,000 rows to a row group), in files of at most
20,000 rows. Every figure is of a process of its own, which reads as one rank does, in the shuffled order of a job. The
server (moto, in a process of its own on loopback) is the ceiling of the rows per second from S3: what it serves bare is
printed beside. `survey` is the process that looked at every prompt; `read` one that found the survey. Memory is the
most RssAnon beyond what it was with the libraries loaded. `load` is that of the machine when a line began. --write puts
what was measured into the table of docs/benchmarks.md, line by line: large sets may be measured one kind at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import docs_section
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rljob_worker.data.dataset import PromptDataset
from rljob_worker.data.source import DataAccess
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer
from rljob_worker.storage.tests.s3_server import S3Server, s3_server

BATCH_ROWS = 64
NUM_STEPS = 20
FILE_ROWS = 20_000
WORK_SECONDS = 0.1
"""What stands for generating and training, while the next rows are read."""


@dataclass
class Data:
    prompt_column: str = "prompt"
    max_prompt_tokens: int = 1024
    shuffle: bool = True
    apply_chat_template: bool = False
    system_prompt: str | None = None


@dataclass
class DataFile:
    path: str
    name: str | None = "data"
    weight: float | None = None


class Memory:
    """The most private memory of this process since it was made, in bytes."""

    def __init__(self) -> None:
        self.first = self.most = rss_anon()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, rss_anon())
            time.sleep(0.01)

    @property
    def grown_mib(self) -> float:
        return (max(self.most, rss_anon()) - self.first) / 2**20


def rss_anon() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measure(path: str, cache: str) -> dict[str, float]:
    """In a process of its own: open, read, read ahead."""
    warm_up(cache)
    memory, tokenizer = Memory(), words_tokenizer()
    dataset = PromptDataset(
        Data(),
        sources=[DataFile(path)],
        columns=("answer",),
        tokenizer=tokenizer,
        access=DataAccess(Path(cache)),
        seed=1,
    )
    batches = [np.arange(step * BATCH_ROWS, (step + 1) * BATCH_ROWS) % len(dataset) for step in range(3 * NUM_STEPS)]
    started = time.perf_counter()
    for batch in batches[:NUM_STEPS]:
        dataset.fetch(batch)
    seconds = time.perf_counter() - started
    waits = {}
    for ahead in (False, True):
        first = NUM_STEPS * (1 + ahead)
        waits[ahead] = statistics.median(waits_of(dataset, batches[first : first + NUM_STEPS], ahead))
    return {
        "rows/s": BATCH_ROWS * NUM_STEPS / seconds,
        "wait ms": waits[False] * 1e3,
        "wait ms, read ahead": waits[True] * 1e3,
        "MiB": memory.grown_mib,
    }


def waits_of(dataset: PromptDataset, batches: list[np.ndarray], ahead: bool) -> Iterator[float]:
    """Seconds that each step waited for its rows."""
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        started = time.perf_counter()
        dataset.fetch(batch)
        yield time.perf_counter() - started
        if ahead and after is not None:
            dataset.read_ahead(after)
        time.sleep(WORK_SECONDS)


def warm_up(cache: str) -> None:
    """Load what reading loads, with a data set of one row."""
    place = Path(cache) / "warm-up.parquet"
    pq.write_table(pa.table({"prompt": ["a"], "answer": ["a"]}), place)
    PromptDataset(
        Data(),
        sources=[DataFile(str(place))],
        columns=("answer",),
        tokenizer=words_tokenizer(),
        access=DataAccess(Path(cache)),
    ).fetch([0])


def row(number: int) -> dict[str, str]:
    words = "abcdefgh"
    return {"prompt": " ".join(words[(number * 7 + j) % 8] for j in range(100)), "answer": f"the answer to {number}"}


def write(folder: Path, number: int, kinds: Sequence[str]) -> dict[str, Path]:
    """The same rows as every kind of files: folders."""
    places = {kind: folder / f"{number}-{kind.split()[0].lower()}" for kind in kinds}
    for place in places.values():
        place.mkdir()
    for part, first in enumerate(range(0, number, FILE_ROWS)):
        rows = [row(i) for i in range(first, min(first + FILE_ROWS, number))]
        if "JSON lines" in places:
            text = "".join(json.dumps(each) + "\n" for each in rows)
            (places["JSON lines"] / f"{part:04}.jsonl").write_text(text)
        if "Parquet" in places:
            file = places["Parquet"] / f"{part:04}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=1000)
    return places


@contextmanager
def served() -> Iterator[S3Server]:
    """The server in a process of its own."""
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        server = S3Server(url=process.stdout.readline().strip())
        server.put("data", b"")
        try:
            yield server
        finally:
            process.terminate()


def serve() -> None:
    with s3_server() as server:
        print(server.url, flush=True)
        sys.stdin.read()


def bare_requests_per_second(url: str, number: int = 300) -> float:
    """What the server gives one client that asks for nothing, one request after the other."""
    started = time.perf_counter()
    for _ in range(number):
        urlopen(f"{url}/moto-api/").read()
    return number / (time.perf_counter() - started)


def in_process(path: str, cache: Path, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, __file__, "measure", path, str(cache)]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


HEADS = ("rows", "kind", "from", "rows/s", "spread", "wait ms", "ahead ms", "survey MiB", "read MiB", "load")
KINDS = ("JSON lines", "Parquet")
STORES = ("disk", "S3")


def compare(sizes: Sequence[int], kinds: Sequence[str], stores: Sequence[str], repeats: int) -> list[str]:
    """Lines of the table."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, served() as server:
        print(
            f"The bare server answers one client {bare_requests_per_second(server.url):.0f} times a second.", flush=True
        )
        for number in sizes:
            for kind, place in write(Path(folder), number, kinds).items():
                paths = {"disk": str(place), "S3": f"s3://data/{place.name}"}
                if "S3" in stores:
                    for file in place.iterdir():
                        server.put(f"data/{place.name}/{file.name}", file.read_bytes())
                for where in stores:
                    load = os.getloadavg()[0]
                    cache = Path(folder) / f"cache-{where}-{place.name}"
                    cache.mkdir()
                    found = [in_process(paths[where], cache, server.environment) for _ in range(1 + repeats)]
                    row = [f"{number:,}", kind, where, *cells(found), f"{load:.1f}"]
                    lines.append("| " + " | ".join(row) + " |")
                    print(lines[-1], flush=True)
    return lines


def cells(found: list[dict[str, Any]]) -> list[str]:
    """The first of them made the survey."""
    survey, *read = found
    middle = {key: statistics.median(each[key] for each in read) for key in read[0]}
    rates = [each["rows/s"] for each in read]
    return [
        f"{middle['rows/s']:,.0f}",
        f"{min(rates):,.0f}–{max(rates):,.0f}",
        f"{middle['wait ms']:.1f}",
        f"{middle['wait ms, read ahead']:.1f}",
        f"{survey['MiB']:.1f}",
        f"{middle['MiB']:.1f}",
    ]


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        return serve()
    if sys.argv[1:2] == ["measure"]:
        return print(json.dumps(measure(*sys.argv[2:4])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100, 400])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the lines into the table of docs/benchmarks.md")
    options = parser.parse_args()
    sizes = [times * options.rows for times in options.times]
    head = ["| " + " | ".join(HEADS) + " |", "|--:|---|---" + "|--:" * (len(HEADS) - 3) + "|"]
    print("\n".join(head))
    lines = compare(sizes, options.kinds, options.stores, options.repeats)
    if options.write:
        docs_section.write("loading", head + docs_section.merged(docs_section.read("loading")[2:], lines, 3))


if __name__ == "__main__":
    main()
