"""Supervised pre-training on the mixed corpus, in plain torch."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rljob_worker.tiny.tokenizer import encode_answer, encode_prompt

_IGNORED = -100


@dataclass(frozen=True)
class Pretraining:
    """Optimizer settings; `steps` 0 leaves the model as it was initialised."""

    steps: int = 700
    rows_per_step: int = 64
    learning_rate: float = 3e-3
    warmup_steps: int = 30
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0


def learning_rate_factor(step: int, settings: Pretraining) -> float:
    """Linear warm-up, then half a cosine down to zero; `step` counts from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def pretrain(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterator[tuple[str, str]],
    settings: Pretraining,
    report: Callable[[int, float], None],
) -> None:
    """Trains `model` in place on (question, answer) texts; the loss counts answer tokens only.

    `report(step, loss)` is called after every step, counted from 1.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    model.train()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_factor(step, settings)
        loss = answer_loss(model, *collate(tokenizer, list(itertools.islice(texts, settings.rows_per_step))))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        report(step + 1, loss.item())
    model.eval()


def collate(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """(tokens, labels), both [rows, length], padded on the right; labels outside the answer are -100."""
    prompts = [encode_prompt(tokenizer, question) for question, _ in texts]
    answers = [encode_answer(tokenizer, answer) for _, answer in texts]
    length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens = torch.full((len(texts), length), tokenizer.pad_token_id)
    labels = torch.full((len(texts), length), _IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def answer_loss(model: Qwen3ForCausalLM, tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the answer tokens."""
    # Attention is causal and padding comes last, so no mask is needed.
    hidden = model.model(tokens[:, :-1]).last_hidden_state  # [rows, length - 1, hidden]
    wanted = labels[:, 1:] != _IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])
