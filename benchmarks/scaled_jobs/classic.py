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

from planes.systems import peak_bytes
from shaped_links import Place, inside, namespaces

from scaled_jobs.controller import PORT
from scaled_jobs.load import GENERATING, TOKEN_BYTES, Load, Measured
from scaled_jobs.marks import Mark, Marks

WAY = "one controller"
HERE = Path(__file__).parent


@contextlib.contextmanager
def running(load: Load, steps: int, places: Sequence[Place]) -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """The controller's number, and the pods, waiting for nothing."""
    *pods, centre = places
    started: list[subprocess.Popen[str]] = []

    def start(place: Place, *command: str) -> IO[str]:
        full = [*inside(place.name), sys.executable, *command]
        started.append(subprocess.Popen(full, stdout=subprocess.PIPE, text=True, cwd=HERE.parent))
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
        yield started[0].pid, started[1:]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def measure(load: Load, steps: int) -> Measured:
    """Steps after one to warm up."""
    with (
        namespaces([load.megabits] * (load.pods + 1)) as places,
        running(load, steps + 1, places) as (controller, pods),
        ThreadPoolExecutor(load.pods) as pool,
    ):
        marks = Marks(load.pods, lambda: Mark.now([controller, *(pod.pid for pod in pods)], places))
        peaks: list[int] = []

        def listen(pod: subprocess.Popen[str]) -> None:
            assert pod.stdout is not None
            for number in range(1, steps + 2):
                line = pod.stdout.readline()
                assert line == f"{number}\n", "a pod has ended; what it said is above"
                if number == steps and not peaks:
                    peaks.append(peak_bytes(controller))
                marks.passed(number)

        for each in [pool.submit(listen, pod) for pod in pods]:
            each.result()
    return marks.measured(load, WAY, peaks[0])
