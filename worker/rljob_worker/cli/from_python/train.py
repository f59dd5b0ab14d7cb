"""`rljob.train`, `rljob.training` and `rljob.submit`: the same arguments, written out for `help` and completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_worker.cli.from_python.callbacks import CALLBACK_SECONDS
from rljob_worker.cli.from_python.training import Reward, Training, TrainingResult

if TYPE_CHECKING:
    from rljob.client import Client
    from rljob.job import Job


def train(
    model: str | Path,
    data: Any,
    rewards: Reward | Sequence[Reward],
    *,
    prompt_column: str | None = None,
    validation: Any = None,
    algorithm: str = "GRPO",
    steps: int = 100,
    batch_size: int | None = None,
    group_size: int = 8,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: str | Path = ".",
    runs_dir: str | Path = "runs",
    resume: str | None = None,
    on_step: Callable[[int, Mapping[str, float]], object] | None = None,
    on_phase: Callable[[str], object] | None = None,
    on_message: Callable[[str], object] | None = print,
    progress: bool | None = None,
    callback_seconds: float | None = CALLBACK_SECONDS,
) -> TrainingResult:
    """Train a model on this machine, to the end of `steps`.

    model: a directory, or a name of the Hub.   data, validation: a path, a data set of the Hub as
    `hf://datasets/owner/name`, or rows: a list of mappings, a DataFrame, a `datasets.Dataset`.   rewards: functions,
    whose weighted sum is the reward of a response.   prompt_column: unset, the one that looks like prompts.
    batch_size: prompts of a step.   group_size: responses to each.   settings: any field of the job,
    `{"training.learningRate": 1e-6}`.   name: of the run, which goes on where there is one of this name; unset: a new
    one.   folder: where modules of your own are.   runs_dir: where runs are kept.   resume: auto, never or a step.
    on_step, on_phase, on_message: called while it runs, each for at most `callback_seconds`.   progress: a table in
    the notebook's cell; unset: in a notebook, without callbacks.

    Raises InvalidJobError with every problem before anything starts, BadData for rows that are none, or RunFailed.
    """
    return training(
        model, data, rewards, prompt_column=prompt_column, validation=validation, algorithm=algorithm, steps=steps,
        batch_size=batch_size, group_size=group_size, settings=settings, name=name, folder=folder,
    ).run(
        runs_dir=runs_dir, resume=resume, on_step=on_step, on_phase=on_phase, on_message=on_message,
        progress=progress, callback_seconds=callback_seconds,
    )  # fmt: skip


def training(
    model: str | Path,
    data: Any,
    rewards: Reward | Sequence[Reward],
    *,
    prompt_column: str | None = None,
    validation: Any = None,
    algorithm: str = "GRPO",
    steps: int = 100,
    batch_size: int | None = None,
    group_size: int = 8,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: str | Path = ".",
) -> Training:
    """What `train` would run, for `to_yaml`, `save`, `run` and `submit`; arguments as there."""
    several = rewards if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
    return Training(
        model=str(model), data=data, rewards=tuple(several), prompt_column=prompt_column, validation=validation,
        algorithm=algorithm, steps=steps, batch_size=batch_size, group_size=group_size, settings=settings or {},
        name=name or time.strftime("training-%Y%m%d-%H%M%S"), folder=Path(folder).absolute(),
    )  # fmt: skip


def submit(
    model: str | Path,
    data: Any,
    rewards: Reward | Sequence[Reward],
    *,
    prompt_column: str | None = None,
    validation: Any = None,
    algorithm: str = "GRPO",
    steps: int = 100,
    batch_size: int | None = None,
    group_size: int = 8,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: str | Path = ".",
    client: Client | None = None,
) -> Job:
    """Create on a cluster what `train` would run here; arguments as there. client: unset, of the current context."""
    return training(
        model, data, rewards, prompt_column=prompt_column, validation=validation, algorithm=algorithm, steps=steps,
        batch_size=batch_size, group_size=group_size, settings=settings, name=name, folder=folder,
    ).submit(client)  # fmt: skip
