"""A stage and a reward that make the trouble which `trouble.json` beside the job asks for; a test writes that file.

{"steps": {"3": "hold"}, "rows": {"5": "raise"}}      in step 3 the stage holds; on row 5 the reward raises

Every reward process of every job imports this module, so it imports next to nothing itself.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from rljob_worker.tests.waiting import wait_for

FILE_LIMIT_BYTES = 1 << 18
"""Less than a shard of the tiny model, more than any log."""


def stage(batch: Any, context: Any) -> dict[str, list[float]]:
    """Writes the column `calm`."""
    fault = _asked_for("steps", context.step)
    if fault == "hold":
        if context.step > 1:
            await_commit(context.step - 1)
        _hold("steps", context.step)
    elif fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "break_vllm":
        _break_vllm(context.step)
    elif fault == "fill_disk":
        await_commit(context.step - 1)  # it is written while this step runs
        # to a writer a full disk and a file that may not grow are the same: a failed write
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, resource.RLIM_INFINITY))
    return {"clam" if fault == "misspell" else "calm": [0.0] * len(batch)}


def reward(row: dict[str, Any]) -> float:
    """How varied the response is, 0 to 1: the tiny model's responses differ in it, so there is something to learn."""
    fault = _asked_for("rows", row["row_id"])
    if fault == "raise":
        _fail(row)
    if fault == "hold":
        _hold("rows", row["row_id"])
    if fault == "hang":
        held(_folder(), row["row_id"]).touch()
        signal.pause()
    return float("nan") if fault == "nan" else len(set(row["response"])) / max(1, len(row["response"]))


def ask_for(folder: Path, **fault: dict[int, str]) -> None:
    """`ask_for(folder, steps={3: "hold"})`; nothing asked for ends all trouble, and lets go of what is held."""
    partial = folder / "trouble.partial"
    partial.write_text(json.dumps(fault))
    partial.rename(folder / "trouble.json")


def held(folder: Path, number: int) -> Path:
    """A file that is there once a stage holds in a step, or the reward holds or hangs on a row."""
    return folder / f"held-{number}"


def await_commit(step: int) -> None:
    """Wait, in a worker, until the checkpoint of an earlier step is committed, which no step waits for."""
    from rljob_worker.checkpoint.manifest import committed

    checkpoints = Path(os.environ["RLJOB_RUN_DIR"]) / "checkpoints"
    wait_for(lambda: any(item.step == step for item in committed(checkpoints)))


def _hold(kind: str, number: int) -> None:
    held(_folder(), number).touch()
    while _asked_for(kind, number) == "hold":
        time.sleep(0.01)


def _break_vllm(step: int) -> None:
    """From the next step on it fails in the middle of generating."""
    from vllm.v1.engine.llm_engine import LLMEngine

    begun = []

    def break_later(engine: LLMEngine) -> Any:
        if begun:
            await_commit(step)
            raise RuntimeError("illegal instruction")
        begun.append(engine)
        return whole(engine)

    whole, LLMEngine.step = LLMEngine.step, break_later


def _fail(row: dict[str, Any]) -> NoReturn:
    raise LookupError(f"no idea how good {row['response']!r} is")


def _asked_for(kind: str, number: int) -> str | None:
    if "RLJOB_RUN_DIR" not in os.environ:  # the reward is tried before there is a run
        return None
    path = _folder() / "trouble.json"
    asked: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    return asked.get(kind, {}).get(str(number))


def _folder() -> Path:
    """The folder of the job's YAML; runs are in `runs/NAME` below it."""
    return Path(os.environ["RLJOB_RUN_DIR"]).parents[1]
