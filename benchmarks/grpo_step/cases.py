"""What is measured: a model, prompts and lengths that both systems are given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_step.ragged_model import make_ragged

LEARNING_RATE = 1e-6
"""Too small to change response lengths while they are measured."""


@dataclass(frozen=True)
class StepCase:
    """One shape of a GRPO step."""

    name: str
    prompts: int
    group_size: int
    max_prompt_tokens: int
    max_response_tokens: int
    chat: bool
    """Whether the question becomes a user message of the model's chat template."""
    make: Callable[[Path], None]
    """Writes `model/` and `train.parquet` with a column `question` to a directory."""
    steps: int
    """Steps of one run, the first `warmup` of which do not count."""
    warmup: int
    trl_micro_batches: int
    """Parts of TRL's update; of 2, 8 and 32 none is clearly faster on two cores."""
    goal: float
    """TRL's seconds over ours."""

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size


def make_tiny(directory: Path) -> None:
    """The quick start's model before its pre-training: it hardly ever ends a response before the longest."""
    command = [sys.executable, "-m", "rljob_worker.tiny", "--out", str(directory), "--steps", "0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_ragged_model(directory: Path) -> None:
    make_ragged(directory, mean=64, longest=512, prompt_tokens=16, num_prompts=1024)


def make_short_ragged_model(directory: Path) -> None:
    make_ragged(directory, mean=8, longest=48, prompt_tokens=8, num_prompts=256)


QUICKSTART = StepCase("quickstart", 8, 8, 32, 48, True, make_tiny, 22, 2, 1, 1.0)
RAGGED = StepCase("ragged", 64, 8, 32, 512, False, make_ragged_model, 3, 1, 8, 1.5)
CASES = {case.name: case for case in (QUICKSTART, RAGGED)}


def quick(case: StepCase) -> StepCase:
    """A smoke run: few steps, and ragged lengths of at most 48."""
    if case.name == "ragged":
        case = replace(case, name="ragged-short", prompts=8, max_response_tokens=48, make=make_short_ragged_model)
    return replace(case, steps=3, warmup=1)
