"""Supervised pre-training on the mixed corpus, in plain torch."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3ForCausalLM

from rljob_worker.tiny.muon import Muon
from rljob_worker.tiny.recipe import Pretraining
from rljob_worker.tiny.tokenizer import encode_answer, encode_prompt

IGNORED = -100
"""The label of a token that no loss counts."""
Labelled = tuple[Tensor, Tensor]
"""(tokens, labels), both int64 [rows, length], padded on the right."""
Loss = Callable[..., Tensor]
"""Mean cross-entropy of the answer tokens, from a model and what is in a part of a batch."""


def pretraining_rate_factor(step: int, settings: Pretraining) -> float:
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

    def batch() -> list[Labelled]:
        rows = list(itertools.islice(texts, settings.rows_per_step))
        return [collate(tokenizer, part) for part in _by_style(rows) if part]

    pretrain_on(model, batch, settings, report)


def pretrain_on(
    model: PreTrainedModel,
    next_batch: Callable[[], Sequence[tuple[Tensor, ...]]],
    settings: Pretraining,
    report: Callable[[int, float], None],
    loss_of: Loss | None = None,
) -> None:
    """Trains `model` in place on batches, each in parts as `collate` makes them, with what else `loss_of` takes behind
    tokens and labels. report: as for `pretrain`. loss_of: else `answer_loss`."""
    optimizers = optimizers_of(model, settings)
    model.train()
    for step, _ in enumerate(scheduled(optimizers, settings), start=1):
        model.zero_grad(set_to_none=True)
        loss = _accumulate_gradient(model, next_batch(), loss_of or answer_loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
        report(step, loss)
    model.eval()


def reporter(model: PreTrainedModel, steps: int) -> Callable[[int, float], None]:
    """Says how many steps there will be, and every fifty steps how far it is."""
    began = time.monotonic()
    print(f"pre-training {model.num_parameters() / 1e6:.1f} M parameters for {steps} steps", flush=True)

    def report(step: int, loss: float) -> None:
        if step % 50 == 0 or step == steps:
            print(f"  step {step}/{steps}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)

    return report


def optimizers_of(model: torch.nn.Module, settings: Pretraining) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, norms and the head of a classifier.

    With AdamW alone the worked solutions take more than twice the steps to come out right.
    """
    named = dict(model.named_parameters())
    layer_weights = [weight for name, weight in named.items() if weight.ndim == 2 and ".layers." in name]
    others = [weight for name, weight in named.items() if weight.ndim != 2 or ".layers." not in name]
    decay = settings.weight_decay
    return [
        Muon(layer_weights, lr=settings.matrix_learning_rate, weight_decay=decay),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=decay),
    ]


def scheduled(optimizers: list[torch.optim.Optimizer], settings: Pretraining) -> Iterator[None]:
    """Before each step, `settings.steps` times: their learning rates, from those that they were made with."""
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step in range(settings.steps):
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * pretraining_rate_factor(step, settings)
        yield


def _by_style(rows: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Worked and terse rows apart: half of a batch of both would be padding."""
    worked = [row for row in rows if "=" in row[1]]
    return worked, [row for row in rows if "=" not in row[1]]


def _accumulate_gradient(model: PreTrainedModel, parts: Sequence[tuple[Tensor, ...]], loss_of: Loss) -> float:
    """Adds the gradient of the mean over all answer tokens of all parts; returns that mean."""
    counts = [int((part[1] != IGNORED).sum()) for part in parts]
    total = 0.0
    for part, count in zip(parts, counts, strict=True):
        loss = loss_of(model, *part) * (count / sum(counts))
        loss.backward()
        total += loss.item()
    return total


def collate(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> Labelled:
    """(tokens, labels), both [rows, length], padded on the right; labels outside the answer are -100."""
    prompts = [encode_prompt(tokenizer, question) for question, _ in texts]
    answers = [encode_answer(tokenizer, answer) for _, answer in texts]
    length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens = torch.full((len(texts), length), tokenizer.pad_token_id)
    labels = torch.full((len(texts), length), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def answer_loss(model: Qwen3ForCausalLM, tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the answer tokens."""
    # Attention is causal and padding comes last, so no mask is needed.
    hidden = model.model(tokens[:, :-1]).last_hidden_state  # [rows, length - 1, hidden]
    wanted = labels[:, 1:] != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])
