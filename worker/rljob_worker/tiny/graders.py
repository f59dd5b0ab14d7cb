"""Models that tell true answers from false ones, from DIR/model: `python -m rljob_worker.tiny --out DIR --graders`.

DIR/reward-model    a sequence classifier, trained with the loss of Bradley and Terry
DIR/judge           a language model that is asked RUBRIC and answers `#### 1` or `#### 0`

Both begin as the tiny model, which has read how problems are worked out. They are made once and kept, as that is.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

from rljob_worker.built_once import build_once, cache_root, digest
from rljob_worker.services.requests import filled
from rljob_worker.tiny.graded import pairs
from rljob_worker.tiny.pretrain import learning_rate_factor, pretrain
from rljob_worker.tiny.problems import Problem, split_problems, terse
from rljob_worker.tiny.recipe import Pretraining
from rljob_worker.tiny.tokenizer import encode_answer, encode_prompt

RUBRIC = "{prompt}\n{response}\nright?"
"""What the tiny judge is asked; it has read nothing else."""

REWARD_MODEL, JUDGE = "reward-model", "judge"

# Raised when the same settings begin to give other models.
_VERSION = 2


@dataclass(frozen=True)
class Grading:
    """Optimizer settings of both."""

    steps: int = 300
    rows_per_step: int = 64
    learning_rate: float = 1e-3
    threads: int = 2


def provide_graders(directory: Path, seed: int, settings: Grading) -> None:
    """What `seed` and the model in `directory` make, beside that model."""
    weights = (directory / "model" / "model.safetensors").read_bytes()
    kept = cache_root() / "tiny" / f"graders-{digest(weights, repr((_VERSION, seed, settings, torch.__version__)))}"
    build_once(kept, lambda folder: make(directory / "model", folder, seed, settings))
    for name in (REWARD_MODEL, JUDGE):
        shutil.copytree(kept / name, directory / name, dirs_exist_ok=True)


def make(model: Path, folder: Path, seed: int, settings: Grading) -> None:
    """Train both and write them into the folder; the held-out problems are left out."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(model)
    problems = split_problems(seed)
    reward_model = train_reward_model(model, tokenizer, problems.train, seed, settings, _reporter("reward model"))
    right = _share_right(reward_model, tokenizer, problems.validation, seed)
    print(f"reward model: the true answer is above the false one in {right:.2f} of held-out pairs", flush=True)
    reward_model.save_pretrained(folder / REWARD_MODEL)
    tokenizer.save_pretrained(folder / REWARD_MODEL)
    judge = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    fine_tuning = Pretraining(settings.steps, settings.rows_per_step, learning_rate=settings.learning_rate)
    pretrain(judge, tokenizer, questions(problems.train, seed), fine_tuning, _reporter("judge"))
    judge.save_pretrained(folder / JUDGE)
    tokenizer.save_pretrained(folder / JUDGE)


def questions(problems: tuple[Problem, ...], seed: int) -> Iterator[tuple[str, str]]:
    """What a judge is asked of true and of false answers, and what it should say."""
    rng = random.Random(f"judge {seed}")
    for question, true, false in pairs(problems, seed):
        is_true = rng.random() < 0.5
        row = {"prompt": question, "response": true if is_true else false}
        yield filled(RUBRIC, row), terse(int(is_true))


def train_reward_model(
    model: Path,
    tokenizer: PreTrainedTokenizerFast,
    problems: tuple[Problem, ...],
    seed: int,
    settings: Grading,
    report: Callable[[int, float], None],
) -> Any:
    """A classifier of one output that begins as the model in `model`.

    loss = -mean log sigmoid(r(true) - r(false))

    Bradley and Terry, 1952; Ouyang et al., https://arxiv.org/abs/2203.02155
    """
    classifier = _with_new_head(model, seed)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95))
    schedule = Pretraining(settings.steps)
    graded = pairs(problems, seed)
    classifier.train()
    for step in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * learning_rate_factor(step, schedule)
        batch = list(itertools.islice(graded, settings.rows_per_step))
        loss = -logsigmoid(_margins(classifier, tokenizer, batch)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(classifier.parameters(), 1.0)
        optimizer.step()
        report(step + 1, loss.item())
    return classifier.eval()


def _with_new_head(model: Path, seed: int) -> Any:
    """The model's own layers under a head of one output. `from_pretrained` would warn that nobody trained that."""
    config = AutoConfig.from_pretrained(model, num_labels=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    layers = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).model
    classifier.model.load_state_dict(layers.state_dict())
    return classifier


def _margins(classifier: Any, tokenizer: PreTrainedTokenizerFast, batch: list[tuple[str, str, str]]) -> Tensor:
    """How much better the true answers are: [pairs]."""
    texts = [(question, answer) for question, *answers in batch for answer in answers]
    rows = [encode_prompt(tokenizer, question) + encode_answer(tokenizer, answer) for question, answer in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    rewards = classifier(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits.squeeze(-1)
    return rewards[0::2] - rewards[1::2]


@torch.inference_mode()
def _share_right(
    classifier: Any, tokenizer: PreTrainedTokenizerFast, problems: tuple[Problem, ...], seed: int
) -> float:
    batch = list(itertools.islice(pairs(problems, seed + 1), len(problems)))
    return float((_margins(classifier, tokenizer, batch) > 0).float().mean())


def _reporter(name: str) -> Callable[[int, float], None]:
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"  {name}: step {step}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)

    return report
