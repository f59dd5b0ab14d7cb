"""The same job through one controller, itself behind a link like the others'."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from shaped_links import shaped

from rljob_worker.tests.namespaces import Place, inside
from scaled_jobs.controller import PORT
from scaled_jobs.load import GENERATING, TOKEN_BYTES, Load, Measured
from scaled_jobs.marks import Mark, Marks

WAY = "one controller"
HERE = Path(__file__).parent


@contextlib.contextmanager
def running(load: Load, steps: int, places: Sequence[Place]) -> Iterator[list[subprocess.Popen[str]]]:
    """The controller and the pods, waiting for nothing."""
    *pods, centre = places
    started: list[subprocess.Popen[str]] = []

    def start(place: Place, *command: str) -> IO[str]:
        full = [*inside(place.name), sys.executable, *command]
        started.append(
            subprocess.Popen(full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
        )
        out = started[-1].stdout
        assert out is not None
        return out

    try:
        out = start(centre, "-m", "scaled_jobs.controller", str(load.pods), str(TOKEN_BYTES), str(steps))
        assert out.readline(), "the controller has ended; what it said is above"
        told = {
            "token_bytes": TOKEN_BYTES,
            "generate": load.compute_seconds * GENERATING,
            "train": load.compute_seconds * (1 - GENERATING),
        }
        for index, place in enumerate(pods):
            lengths = json.dumps(load.lengths(index).tolist())
            arguments = [centre.address, str(PORT), str(index), json.dumps(told), lengths, str(steps)]
            start(place, "-S", str(HERE / "classic_pod.py"), *arguments)
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def measure(load: Load, steps: int) -> Measured:
    """Steps from the first: sockets need no warming up."""
    with (
        shaped([load.megabits] * (load.pods + 1)) as places,
        running(load, steps, places) as (controller, *pods),
        ThreadPoolExecutor(load.pods) as pool,
    ):
        marks = Marks(load.pods, lambda: Mark.now([process.pid for process in (controller, *pods)], places))

        def listen(pod: subprocess.Popen[str]) -> None:
            assert pod.stdout is not None
            for number in range(steps + 1):
                line = pod.stdout.readline()
                assert line == f"{number}\n", "a pod has ended; what it said is above"
                marks.passed(number)

        for each in [pool.submit(listen, pod) for pod in pods]:
            each.result()
        assert controller.stdout is not None
        memory = int(controller.stdout.readline())
    return marks.measured(load, WAY, memory)
