"""The peers beside us: one process of their environment speaks for them all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer_venv import Venv

from planes.leftovers import MARK, end_marked
from planes.rows import RowCase
from planes.systems import TWO_PODS

VENV = Venv(
    "peers",
    (
        "torch==2.13.0",
        "ray==2.60.0",
        "TransferQueue==0.1.11",
        "verl==0.9.1",
        "loguru==0.7.3",
        "dacite==1.9.2",
        "psutil==7.2.2",
    ),
    ("siirl==0.2.0",),
)
"""siiRL declares vLLM and an older tensordict, and its coordinator runs without the one and with the newer."""
NAMES = ("Ray", "TransferQueue", "siiRL", "verl")
STOP_SECONDS = 30.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": str(Path(__file__).parent),  # workers of Ray have it from their node
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",  # 15 by default: it would have to wait for everybody else
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy",  # the faster of its two
    "TQ_LOGGING_LEVEL": "ERROR",
    "LOGURU_LEVEL": "ERROR",
}
OBJECTS, OBJECTS_BYTES = 3, 64 << 20
"""Room of an object store: a multiple of the rows of the largest case, and a constant number of bytes."""


class PeerEnded(RuntimeError):
    """The peers' process is not there any more."""


class PeerSystem:
    """One of them, at work on one case."""

    def __init__(self, name: str, case: RowCase, source: Path, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process
        self._ask("begin", case.to_json(), str(source))

    def tell(self, action: str, step: int) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._ask("tell", action, step)
        return result

    def processes(self) -> Mapping[str, Sequence[int]]:
        result: dict[str, list[int]] = self._ask("processes")
        return result

    def close(self) -> None:
        self._ask("end")

    def _ask(self, what: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([what, self.name, *arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerEnded("the peers' process has ended") from error
        return answer(self._process)


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise PeerEnded("the peers' process has ended; what it said is above")
    return json.loads(line)


@contextlib.contextmanager
def running(
    names: Sequence[str], ranks: Sequence[int], place: str, most: int
) -> Iterator[subprocess.Popen[str] | None]:
    """Those systems for cases of at most n bytes; all that they started ends with the block."""
    if not names:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rp") as directory, open(Path(directory) / "errors", "w+") as errors:
        script = Path(__file__).with_name("peer_process.py")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {**ENVIRONMENT, MARK: directory}
        objects = OBJECTS_BYTES + OBJECTS * most
        arguments = [directory, *map(str, ranks), str(place == TWO_PODS), str(objects), *names]
        process = subprocess.Popen(
            [str(VENV.python()), str(script), *arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # an interrupt is ours to pass on: it has processes to end
        )
        try:
            answer(process)
            yield process
        except PeerEnded:
            errors.seek(0)
            print(errors.read()[-4000:])
            raise
        finally:
            stop(process)
            end_marked(directory)


def stop(process: subprocess.Popen[str]) -> None:
    """Let it end its cluster, for some seconds."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    process.kill()
    process.wait()
