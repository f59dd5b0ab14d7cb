"""Models that tell good answers from poor ones, from DIR/model: `python -m rljob_worker.tiny --out DIR --graders`.

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

from rljob_worker.built_once import build_once, cache_root, short_digest
from rljob_worker.services.requests import fill_template
from rljob_worker.tiny.corpus import pairs
from rljob_worker.tiny.pretrain import optimizers_of, pretrain, scheduled
from rljob_worker.tiny.problems import WordProblem, split_problems, terse
from rljob_worker.tiny.recipe import Pretraining
from rljob_worker.tiny.tokenizer import encode_answer, encode_prompt

RUBRIC = "{prompt}\n{response}\nright?"
"""What the tiny judge is asked; it has read nothing else."""

REWARD_MODEL, JUDGE = "reward-model", "judge"

# Raised when the same settings begin to give other models.
_VERSION = 3

FINE_TUNING = Pretraining(steps=120, learning_rate=1e-3)
"""Fine-tuning settings of both graders."""


def provide_graders(directory: Path, seed: int, threads: int) -> None:
    """What `seed` and the model in `directory` make, beside that model."""
    weights = (directory / "model" / "model.safetensors").read_bytes()
    kept = (
        cache_root()
        / "tiny"
        / f"graders-{short_digest(weights, repr((_VERSION, seed, FINE_TUNING, torch.__version__)))}"
    )
    build_once(kept, lambda folder: make_graders(directory / "model", folder, seed, threads))
    for name in (REWARD_MODEL, JUDGE):
        shutil.copytree(kept / name, directory / name, dirs_exist_ok=True)


def make_graders(model: Path, folder: Path, seed: int, threads: int, settings: Pretraining = FINE_TUNING) -> None:
    """Train both and write them into the folder; the held-out problems are left out."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(model)
    problems = split_problems(seed)
    reward_model = train_reward_model(model, tokenizer, problems.train, seed, settings, _reporter("reward model"))
    right = _share_right(reward_model, tokenizer, problems.validation, seed)
    print(f"reward model: the good answer is above the poor one in {right:.2f} of held-out pairs", flush=True)
    reward_model.save_pretrained(folder / REWARD_MODEL)
    tokenizer.save_pretrained(folder / REWARD_MODEL)
    judge = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    pretrain(judge, tokenizer, judge_examples(problems.train, seed), settings, _reporter("judge"))
    judge.save_pretrained(folder / JUDGE)
    tokenizer.save_pretrained(folder / JUDGE)


def judge_examples(problems: tuple[WordProblem, ...], seed: int) -> Iterator[tuple[str, str]]:
    """What a judge is asked of good and of poor answers, and what it should say."""
    rng = random.Random(f"judge {seed}")
    for question, good, poor in pairs(problems, seed):
        is_good = rng.random() < 0.5
        row = {"prompt": question, "response": good if is_good else poor}
        yield fill_template(RUBRIC, row), terse(int(is_good))


def train_reward_model(
    model: Path,
    tokenizer: PreTrainedTokenizerFast,
    problems: tuple[WordProblem, ...],
    seed: int,
    settings: Pretraining,
    report: Callable[[int, float], None],
) -> Any:
    """A classifier of one output that begins as the model in `model`.

    loss = -mean log sigmoid(r(good) - r(poor))

    Bradley and Terry, 1952; Ouyang et al., https://arxiv.org/abs/2203.02155
    """
    classifier = _with_new_head(model, seed)
    optimizers = optimizers_of(classifier, settings)
    graded = pairs(problems, seed)
    classifier.train()
    for step, _ in enumerate(scheduled(optimizers, settings), start=1):
        batch = list(itertools.islice(graded, settings.rows_per_step))
        loss = -logsigmoid(_margins(classifier, tokenizer, batch)).mean()
        classifier.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(classifier.parameters(), settings.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
        report(step, loss.item())
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
    """How much better the good answers are: [pairs]."""
    texts = [(question, answer) for question, *answers in batch for answer in answers]
    rows = [encode_prompt(tokenizer, question) + encode_answer(tokenizer, answer) for question, answer in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    rewards = classifier(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits.squeeze(-1)
    return rewards[0::2] - rewards[1::2]


def _share_right(
    classifier: Any, tokenizer: PreTrainedTokenizerFast, problems: tuple[WordProblem, ...], seed: int
) -> float:
    batch = list(itertools.islice(pairs(problems, seed + 1), len(problems)))
    with torch.inference_mode():
        return float((_margins(classifier, tokenizer, batch) > 0).float().mean())


def _reporter(name: str) -> Callable[[int, float], None]:
    began = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"  {name}: step {step}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)

    return report
