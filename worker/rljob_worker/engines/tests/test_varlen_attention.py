"""Packed forwards against one stock forward per row, in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.batch import Batch
from rljob_worker.engines.attention import varlen
from rljob_worker.engines.attention.varlen import ATTENTION, Formula, causal_attention, plan_rectangles, softmax
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.models.families import FAMILIES
from rljob_worker.engines.models.last_layer import fuse_last_layer
from rljob_worker.engines.rms_norm import replace_rms_norms
from rljob_worker.engines.router import replace_routers
from rljob_worker.engines.tests.builders import CONFIGS, VOCABULARY, a_batch
from rljob_worker.engines.tests.peak import Peak
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
STOCK = {"gemma2": "eager"}
"""Of transformers' attentions, sdpa knows no cap of scores, and the one that does has a float32 softmax."""
TOLERANCE = {"gemma2": 1e-5}


def twins(kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """One model with our attention and the same with the stock one, in float64 (norms and routers of both, too)."""
    config = partial(CONFIGS[kind], experts_implementation="eager")  # torch groups no products in float64
    torch.manual_seed(0)
    ours = AutoModelForCausalLM.from_config(config(), attn_implementation=ATTENTION, dtype=torch.float64).eval()
    stock = AutoModelForCausalLM.from_config(config(), attn_implementation=STOCK.get(kind, "sdpa"), dtype=torch.float64)
    stock.load_state_dict(ours.state_dict())
    for model in (ours, stock.eval()):
        replace_rms_norms(model)
        replace_routers(model)
    fuse_last_layer(ours)
    return ours, stock


def by_hand(model: torch.nn.Module, batch: Batch, temperature: float) -> torch.Tensor:
    """Row by row: logits at t - 1 predict token t."""
    result = []
    for prompt, response in zip(batch["prompt_ids"].to_list(), batch["response_ids"].to_list(), strict=True):
        if len(response):
            ids = torch.from_numpy(np.concatenate([prompt, response]))
            logits = model(input_ids=ids[None]).logits[0] / temperature
            log_probs = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            result.append(log_probs.gather(-1, ids[len(prompt) :, None])[:, 0])
    return torch.cat(result)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_log_probs_and_gradients_equal_those_of_the_stock_model(kind: str) -> None:
    batch = a_batch([5, 1, 40, 0, 4, 60, 12, 12], longest_prompt=9)
    ours, stock = twins(kind)
    rows = MicroBatch.of(batch, np.arange(len(batch)), CPU)
    log_probs = response_log_probs(ours, rows, temperature=0.7).log_probs
    expected = by_hand(stock, batch, temperature=0.7)
    assert (log_probs - expected).abs().max() < TOLERANCE.get(kind, 1e-10)
    weights = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    (weights * log_probs).sum().backward()
    (weights * expected).sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        assert (mine.grad - theirs.grad).abs().max() < TOLERANCE.get(kind, 1e-10), name


def test_entropy_of_even_odds_is_the_log_of_the_vocabulary() -> None:
    ours, _ = twins("llama")
    torch.nn.init.zeros_(ours.lm_head.weight)
    rows = MicroBatch.of(a_batch([3, 2]), np.arange(2), CPU)
    entropy = response_log_probs(ours, rows, temperature=0.5, entropy="Figure").entropy
    assert entropy is not None
    torch.testing.assert_close(entropy, torch.full((5,), float(np.log(VOCABULARY)), dtype=torch.float64))


def test_rectangles_join_similar_lengths_and_split_others() -> None:
    # lengths 100 100 99 waste 199 pairs together; 3 beside 100 would waste 9991 more, worth a rectangle of its own
    lengths = np.array([3, 100, 99, 100])
    sequences = np.arange(lengths.sum())
    gather, scatter, rectangles = plan_rectangles(sequences, lengths, len(sequences))
    assert rectangles == ((3, 100), (1, 3))
    assert gather[scatter].tolist() == sequences.tolist()


def test_equal_lengths_in_order_need_no_gather() -> None:
    rows = MicroBatch.of(a_batch([4, 4, 4], group_size=1, longest_prompt=1), np.arange(3), CPU)
    assert rows.layout.gather is None


@pytest.mark.parametrize("cap", [None, 1.5])
def test_no_scores_are_kept_for_the_backward_pass(cap: float | None) -> None:
    """For 40 tokens and 4 heads they would be 6,400 numbers; queries are 640, and what is seen 1,600."""
    query, key, value = (torch.randn(1, heads, 40, 4, requires_grad=True) for heads in (4, 2, 2))
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = causal_attention(query, key, value, Formula(cap=cap))
    assert kept and max(kept) <= 1600
    out.sum().backward()
    assert all(item.grad is not None for item in (query, key, value))


def by_formula(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cap: float, window: int | None
) -> torch.Tensor:
    """Every score of [rows, heads, 40, 4] at once."""
    scores = cap * torch.tanh(query @ key.repeat_interleave(2, 1).mT / 2 / cap)
    sees = torch.ones(40, 40, dtype=torch.bool).tril()
    if window is not None:
        sees &= ~sees.tril(-window)
    return torch.softmax(scores.masked_fill(~sees, -torch.inf), -1) @ value.repeat_interleave(2, 1)


@pytest.mark.parametrize("window", [None, 1, 6, 64])
@pytest.mark.parametrize("at_once", [1, 2 * 4 * 40 * 7, 1 << 24])
def test_bounded_scores_are_those_of_the_formula_however_many_are_made_at_once(
    at_once: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query at a time, seven, and all; two rows, four heads and 40 keys."""
    monkeypatch.setattr(varlen, "SCORES_ELEMENTS", at_once)
    torch.manual_seed(0)
    inputs = [torch.randn(2, heads, 40, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    ours = causal_attention(*inputs, Formula(cap=0.5, window=window))
    theirs = by_formula(*inputs, 0.5, window)
    assert (ours - theirs).abs().max() < 1e-12
    weights = torch.randn_like(theirs)
    for mine, expected in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        assert (mine - expected).abs().max() < 1e-12


def test_weights_of_halves_are_no_halves() -> None:
    # a third in 8 bits is 0.33398
    torch.testing.assert_close(softmax(torch.zeros(1, 3, dtype=torch.bfloat16)), torch.full((1, 3), 1 / 3))


def test_memory_of_bounded_scores_does_not_grow_with_the_square_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many tokens take twice the memory, where some queries are computed at a time."""
    monkeypatch.setattr(varlen, "SCORES_ELEMENTS", 1 << 14)
    peaks = []
    for length in (256, 512):
        query, key, value = (torch.randn(1, 4, length, 8, requires_grad=True) for _ in range(3))
        with Peak() as peak:
            causal_attention(query, key, value, Formula(cap=1.5)).sum().backward()
        peaks.append(peak.bytes())
    assert peaks[1] < 2.5 * peaks[0] and peaks[1] < 4 * 512 * 512 * 4


def test_a_model_with_another_attention_formula_is_refused() -> None:
    ours, _ = twins("llama")
    rows = MicroBatch.of(a_batch([3]), np.arange(1), CPU)
    with pytest.raises(InvalidJob, match="s_aux"):
        ours(
            input_ids=rows.token_ids,
            position_ids=rows.positions,
            use_cache=False,
            attention_layout=rows.layout,
            s_aux=30.0,
        )
