"""What leaves a host in an update, and how long it takes, with weights shared out over all ranks and within each host.

    sudo python benchmarks/replicas.py [--megabits 400] [--updates 2] [--hidden 256] [--layers 8] [--write]

Two hosts, which are network namespaces behind links of a given speed, of two ranks each; qwen3 in Float32, a layer a
unit, gathered and reduced in every one of some micro-batches. Counted are the bytes on the links, beside what they
should be for a model of P bytes:

    data 4                of each micro-batch two gatherings, in which every rank of a ring sends 3/4 P, one of two to
                          the other host, and a reduction, twice that: gloo adds up and tells everybody all of it
    data 4, replicas 2    once, of the shard of P/2 of each rank half of what is added up and half of the sum

--write puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import docs_section
import torch
import torch.distributed as dist
from layouts import in_words, mesh_of
from shaped_links import shaped

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_here, write_config
from rljob_worker.tests.namespaces import Place, inside

LAYOUTS = ("dp=4", "dp=4,rp=2")
HOSTS, PORT = 2, 29400
TOKENS = 128
"""Of a micro-batch, which one row fills."""
HEAD = (
    "| layout | micro-batches | leaves a host in an update, MB | expected | seconds |",
    "|---|--:|--:|--:|--:|",
)


def work(options: argparse.Namespace) -> None:
    """One rank: updates whenever the first rank is told to."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=options.meet, rank=options.rank, world_size=2 * HOSTS)
    settings = TrainSettings(tokens_per_micro_batch=TOKENS, held_bytes=0, min_unit_bytes=0)
    model = random_policy(options.model, torch.float32, 0)
    size = sum(parameter.nbytes for parameter in model.parameters())
    engine = FSDPEngine(model, settings, torch.device("cpu"), mesh_here(mesh_of(options.layout)))
    rows = a_batch([TOKENS - 1] * options.micro_batches, group_size=1, longest_prompt=1, seed=options.rank)
    for _ in range(options.updates + 1):  # what the first one makes, later ones find
        if options.rank == 0:
            print(json.dumps(size), flush=True)
            sys.stdin.readline()
        dist.barrier()
        engine.update(rows, PolicyGradient())
        dist.barrier()
    if options.rank == 0:
        print(json.dumps(size), flush=True)
    dist.destroy_process_group()


def measure(options: argparse.Namespace, places: list[Place], layout: str) -> tuple[int, float, float]:
    """Bytes of the model, of an update those that leave a host, and its seconds."""
    ranks = [start(options, places, layout, rank) for rank in range(2 * HOSTS)]
    try:
        first, sent, seconds = ranks[0], list[int](), list[float]()
        assert first.stdin is not None and first.stdout is not None
        size = int(first.stdout.readline())
        for _ in range(options.updates + 1):
            before, begin = places[0].passed()[0], time.perf_counter()
            print(file=first.stdin, flush=True)
            size = int(first.stdout.readline())
            seconds.append(time.perf_counter() - begin)
            sent.append(places[0].passed()[0] - before)
        return size, median(sent[1:]), median(seconds[1:])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def start(options: argparse.Namespace, places: list[Place], layout: str, rank: int) -> subprocess.Popen[str]:
    own = ["--rank", str(rank), "--layout", layout, "--meet", f"tcp://{places[0].address}:{PORT}"]
    shared = ["--model", options.model, "--updates", options.updates, "--micro-batches", options.micro_batches]
    return subprocess.Popen(
        [*inside(places[rank // 2].name), sys.executable, __file__, *own, *map(str, shared)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def expected(layout: str, size: int, micro_batches: int) -> float:
    return size if mesh_of(layout).rp > 1 else micro_batches * 4 * size * 3 / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", type=float, default=400)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--write", action="store_true")
    for name in ("--rank", "--layout", "--meet", "--model"):
        parser.add_argument(name, type=int if name == "--rank" else str, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        work(options)
        return
    lines = list(HEAD)
    print(*HEAD, sep="\n")
    with tempfile.TemporaryDirectory() as name, shaped([options.megabits] * HOSTS) as places:
        width = {"hidden_size": options.hidden, "intermediate_size": 3 * options.hidden}
        options.model = write_config(Path(name) / "model", num_hidden_layers=options.layers, **width)
        for layout in LAYOUTS:
            size, sent, seconds = measure(options, places, layout)
            told = f"{sent / 1e6:.1f} | {expected(layout, size, options.micro_batches) / 1e6:.1f} | {seconds:.2f}"
            lines.append(f"| {in_words(layout)} | {options.micro_batches} | {told} |")
            print(lines[-1], flush=True)
    if options.write:
        docs_section.write("replicas", lines)


if __name__ == "__main__":
    main()
