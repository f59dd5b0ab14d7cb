"""Private memory of two data buffers over many steps, each with a balanced edge, reports and a verdict.

    python benchmarks/data_buffer_steps.py [--steps 1000]

Two producers on one host, two consumers on another; every data buffer is a process. Every step all ranks put, get,
release, report and hear the verdict. Printed is RssAnon, what a process has for itself alone; the arena is not in it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.tests.gang import Gang, as_processes, part, two_stages
from rljob_worker.metrics.report import Report, report_to_bytes
from rljob_worker.metrics.scalars import mean

RANKS = 2
ROWS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    looks = {steps // 10, (steps + steps // 10) // 2, steps}
    plan = two_stages((1, RANKS), (1, RANKS), balance="Tokens", batch_size=ROWS, group_size=4, deadline_seconds=60.0)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        as_processes(plan, Path(directory)) as gang,
        ThreadPoolExecutor(2 * RANKS) as pool,
    ):
        producers = [gang.client("rollout", rank) for rank in range(RANKS)]
        consumers = [gang.client("train", rank) for rank in range(RANKS)]
        start = time.perf_counter()
        for step in range(1, steps + 1):
            take_step(gang, pool, step, producers, consumers)
            if step in looks:
                seconds = (time.perf_counter() - start) / step
                print(f"step {step:>5}: {shown(gang)}; {seconds * 1e3:.1f} ms a step", flush=True)


def take_step(
    gang: Gang, pool: ThreadPoolExecutor, step: int, producers: list[BufferClient], consumers: list[BufferClient]
) -> None:
    """All ranks at once."""
    produce = [pool.submit(produced, gang, step, rank, client) for rank, client in enumerate(producers)]
    consume = [pool.submit(consumed, step, rank, client) for rank, client in enumerate(consumers)]
    for each in (*produce, *consume):
        each.result()


def produced(gang: Gang, step: int, rank: int, client: BufferClient) -> None:
    sizes = [100 + row % 50 for row in range(4 * ROWS)]
    lengths = {4 * ROWS * (step - 1) + row: size for row, size in enumerate(sizes)}
    client.put(step, "a->b", part(gang.plan, step, rank, RANKS, lengths))
    client.post({"stage": "a", "step": step})
    say_and_hear(step, rank, client)


def consumed(step: int, rank: int, client: BufferClient) -> None:
    client.release(client.get(step, "a->b"))
    if rank:
        say_and_hear(step, RANKS + rank, client)
        return
    client.report(step, a_report(RANKS))
    client.announce("verdict", step, client.collect(step))
    client.await_announcement("verdict", step)


def say_and_hear(step: int, ordinal: int, client: BufferClient) -> None:
    client.report(step, a_report(ordinal))
    client.await_announcement("verdict", step)


def a_report(ordinal: int) -> bytes:
    return report_to_bytes(Report({f"metric_{i}": mean(0.1 * i + ordinal) for i in range(20)}), ordinal)


def shown(gang: Gang) -> str:
    return ", ".join(f"{name} {private_bytes(process.pid) / 1e6:.1f} MB" for name, process in gang.processes.items())


def private_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
