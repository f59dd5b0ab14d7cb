"""One light worker, until it is killed or a peer is: `python -m killed_gang.worker`, see `main` for its arguments.

Rows and weights are real, computing is not. Ends with the exit code of a worker.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from killed_gang.job import (
    COMMIT_EVERY,
    CONSUMERS,
    PRODUCERS,
    ROWS_EDGE,
    WEIGHTS_EDGE,
    WEIGHTS_EVERY,
    chunk_of,
    digest,
    part_of,
    plan_for,
)
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.tests.gang import Gang
from rljob_worker.errors import BadData, RLJobError
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.scalars import mean

NUM_PRODUCERS = PRODUCERS[0] * PRODUCERS[1]
NUM_CONSUMERS = CONSUMERS[0] * CONSUMERS[1]
NUM_METRICS = 20


def work(directory: Path, group: str, rank: int, attempt: int, step: int, room: tuple[str, str]) -> None:
    """Steps from `step` on."""
    client = Gang(plan_for(*room), directory).client(group, rank, attempt=attempt)
    with open(directory / f"seen-{group}-{rank}", "a") as seen:
        while True:
            if group == "rollout":
                produce(client, rank, step)
            else:
                rows, result = consume(client, rank, step)
                seen.write(f"{step} {rows} {result}\n")
                seen.flush()
            client.set_status({"stage": group, "step": step})
            report_and_hear(client, directory, group, rank, step)
            step += 1


def produce(client: BufferClient, rank: int, step: int) -> None:
    client.put(step, ROWS_EDGE, part_of(step, rank))
    if step % WEIGHTS_EVERY == 0:
        chunks = {chunk.source: chunk.data.copy() for chunk in client.receive(step, WEIGHTS_EDGE)}
        whole = {source: chunk_of(step, source) for source in range(NUM_CONSUMERS)}
        if chunks.keys() != whole.keys() or any(not np.array_equal(chunks[item], whole[item]) for item in whole):
            raise BadData(f"weights of version {step} are not what was sent")


def consume(client: BufferClient, rank: int, step: int) -> tuple[int, int]:
    batch = client.get(step, ROWS_EDGE)
    result = len(batch), digest(batch)
    client.release(batch)
    if step % WEIGHTS_EVERY == 0:
        client.release_version(step - WEIGHTS_EVERY, WEIGHTS_EDGE)
        with client.sending(step, WEIGHTS_EDGE) as stream:
            data = chunk_of(step, rank)
            stream.reserve(len(data))[:] = data
            stream.seal(b"")
    return result


def report_and_hear(client: BufferClient, directory: Path, group: str, rank: int, step: int) -> None:
    """The end of a step; the lead commits once everybody is there."""
    ordinal = rank if group == "rollout" else NUM_PRODUCERS + rank
    client.report(
        step, report_to_bytes(StepReport({f"metric_{i}": mean(i + ordinal) for i in range(NUM_METRICS)}), ordinal)
    )
    if (group, rank) == ("train", 0):
        client.announce("verdict", step, client.collect(step))
        if step % COMMIT_EVERY == 0:
            aside = directory / ".committed"
            aside.write_text(str(step))
            aside.rename(directory / "committed")
    client.await_announcement("verdict", step)


def main() -> int:
    directory, group, rank, attempt, step, *room = sys.argv[1:]
    try:
        work(Path(directory), group, int(rank), int(attempt), int(step), (room[0], room[1]))
    except RLJobError as error:
        print(f"{group} {rank}: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
