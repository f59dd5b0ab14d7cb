"""Runs in TRL's own venv: GRPO steps with `GRPOTrainer`, timed; imports nothing of rljob.

    python trl_train.py '{"model": ..., "data": ..., "out": ..., "steps": 10, ...}'

Rank 0 writes a JSON list to `out`: per step `seconds`, from the end of one step to the end of the next, and what they
went to. The parts are timed where TRL calls them: generation; the forward pass with the loss; backward, which contains
the gradient reduction of DDP; the optimizer.

Tuned for TRL, because it is faster here than the default: no gradient checkpointing; no logging, saving or progress
bar; no loader in another process; a DDP that neither broadcasts buffers nor looks for unused parameters. SDPA attention
and float32 without autocast, as ours. Tried and slower: a static cache (1.4 x the time of generation), eager attention
(the same), transformers' continuous batching (50 x on a CPU). `micro_batches` cuts the update of a padded batch that
is too large for memory or cache. TRL computes no old log-probs, as `num_iterations` is 1, and no reference model, as
`beta` is 0.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock:
    """Adds up seconds per part; `lap` ends a step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._parts: dict[str, float] = defaultdict(float)
        self._began = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._parts[name] += time.perf_counter() - began

    def note(self, name: str, value: float) -> None:
        self._parts[name] = value

    def lap(self) -> None:
        now = time.perf_counter()
        self.steps.append({"seconds": now - self._began, **self._parts})
        self._parts.clear()
        self._began = now


class TimedTrainer(GRPOTrainer):
    """`GRPOTrainer` with a clock around its own methods."""

    clock: Clock

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.part("generation"):
            completion_ids, log_probs = super()._generate_single_turn(*args, **kwargs)
        lengths = [len(ids) for ids in completion_ids]
        self.clock.note("response_tokens", sum(lengths))
        self.clock.note("longest", max(lengths))
        return completion_ids, log_probs

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.part("generation_and_batch"):
            return super()._generate_and_score_completions(*args, **kwargs)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.part("forward"):
            return super().compute_loss(*args, **kwargs)


class StepClock(TrainerCallback):
    """Where a step and its optimizer call begin and end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._optimizer_began = 0.0

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer_began = time.perf_counter()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._clock.note("optimizer", time.perf_counter() - self._optimizer_began)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._clock.lap()


def parity(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The reward `rewards.parity` for TRL: 1.0 for an odd number of response tokens."""
    return [float(len(ids) % 2) for ids in completion_ids]


def configuration(job: dict[str, Any]) -> GRPOConfig:
    """The job for `job["processes"]` processes; `job["options"]` overrides anything."""
    rows = job["rows"] // job["processes"] // job["micro_batches"]
    settings = {
        "output_dir": str(Path(job["out"]).parent / "trl"),
        "use_cpu": True,
        "seed": job["seed"],
        "max_steps": job["steps"],
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": job["micro_batches"],
        "num_generations": job["group_size"],
        "max_completion_length": job["max_response_tokens"],
        "learning_rate": job["learning_rate"],
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "temperature": 1.0,
        "beta": 0.0,
        "num_iterations": 1,
        "loss_type": "dapo",  # one mean over all tokens of the batch, as our TokenMean
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,
        "ddp_backend": "gloo" if job["processes"] > 1 else None,
        "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"},
    }
    return GRPOConfig(**settings | job.get("options", {}))


def prompts(job: dict[str, Any]) -> Dataset:
    """The questions as prompts: chat messages where the job uses the chat template."""
    questions = load_dataset("parquet", data_files=job["data"], split="train")["question"]
    if job["chat"]:
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in questions]})
    return Dataset.from_dict({"prompt": list(questions)})


def main() -> None:
    job = json.loads(sys.argv[1])
    clock = Clock()
    trainer = TimedTrainer(
        model=job["model"],
        reward_funcs=parity,
        args=configuration(job),
        train_dataset=prompts(job),
        processing_class=AutoTokenizer.from_pretrained(job["model"], padding_side="left"),
        callbacks=[StepClock(clock)],
    )
    trainer.clock = clock
    backward = trainer.accelerator.backward

    def timed_backward(*args: Any, **kwargs: Any) -> None:
        with clock.part("backward"):
            backward(*args, **kwargs)

    trainer.accelerator.backward = timed_backward
    trainer.train()
    if trainer.accelerator.is_main_process:
        Path(job["out"]).write_text(json.dumps(clock.steps))


if __name__ == "__main__":
    main()
