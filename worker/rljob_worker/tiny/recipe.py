"""All settings of the tiny model and data, and the one function that makes both in a directory."""

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from rljob_worker.tiny.corpus import Mixture, texts
from rljob_worker.tiny.decoding import greedy_accuracy
from rljob_worker.tiny.model import build_model
from rljob_worker.tiny.pretrain import Pretraining, pretrain
from rljob_worker.tiny.problems import Problem, dataset, split_problems, terse
from rljob_worker.tiny.tokenizer import train_tokenizer

_STAMP = "tiny.json"
# Raised when the same settings begin to give another result.
_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """What decides the result, bit for bit on the same machine with the same number of threads."""

    seed: int = 0
    num_train: int = 4096
    num_validation: int = 256
    threads: int = 2
    mixture: Mixture = field(default_factory=Mixture)
    pretraining: Pretraining = field(default_factory=Pretraining)

    def stamp(self) -> str:
        return json.dumps({"version": _VERSION, **dataclasses.asdict(self)}, indent=2)


def quick(seed: int = 0, steps: int = 2) -> Recipe:
    """For tests that need a model which loads and samples, not one that knows anything: made in seconds."""
    pretraining = Pretraining(steps, rows_per_step=16)
    return Recipe(seed, num_train=256, num_validation=32, threads=1, pretraining=pretraining)


def make(recipe: Recipe, directory: Path) -> bool:
    """Writes `directory`/model, train.parquet and validation.parquet; False when they are there already.

    The model is a Hugging Face directory with its tokenizer; the files have columns `question` and `answer`.
    """
    stamp = directory / _STAMP
    if stamp.exists() and stamp.read_text() == recipe.stamp():
        return False
    stamp.unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(recipe.threads)
    problems = split_problems(recipe.seed, recipe.num_validation)
    validation = dataset(problems.validation, recipe.num_validation, recipe.seed)
    pq.write_table(pa.Table.from_pylist(validation), directory / "validation.parquet")
    train = dataset(problems.train, recipe.num_train, recipe.seed)
    pq.write_table(pa.Table.from_pylist(train), directory / "train.parquet")
    tokenizer = train_tokenizer(_spelling(problems.train, train))
    model = build_model(tokenizer, recipe.seed)
    _pretrain(model, tokenizer, problems.train, recipe)
    accuracy = greedy_accuracy(model, tokenizer, validation)
    print(f"greedy accuracy of the base model: {accuracy:.2f}", flush=True)
    transformers_logging.disable_progress_bar()
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    stamp.write_text(recipe.stamp())
    return True


def _spelling(problems: tuple[Problem, ...], rows: list[dict[str, str]]) -> list[str]:
    """Every word and way of answering the tokenizer has to know."""
    guesses = [terse(problem.result) for problem in problems]
    return [text for row in rows for text in row.values()] + guesses


def _pretrain(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: tuple[Problem, ...], recipe: Recipe
) -> None:
    steps, began = recipe.pretraining.steps, time.monotonic()
    print(f"pre-training {model.num_parameters() / 1e6:.1f} M parameters for {steps} steps", flush=True)

    def report(step: int, loss: float) -> None:
        if step % 50 == 0 or step == steps:
            print(f"  step {step}/{steps}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)

    pretrain(model, tokenizer, texts(problems, recipe.mixture, recipe.seed), recipe.pretraining, report)
