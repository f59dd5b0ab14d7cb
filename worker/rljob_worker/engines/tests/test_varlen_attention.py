"""Packed forwards against one stock forward per row, in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.batch import Batch
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.models.families import FAMILIES
from rljob_worker.engines.models.last_layer import fuse_last_layer
from rljob_worker.engines.rms_norm import replace_rms_norms
from rljob_worker.engines.router import replace_routers
from rljob_worker.engines.tests.builders import CONFIGS, VOCABULARY, a_batch
from rljob_worker.engines.varlen_attention import ATTENTION, Formula, causal_attention, plan_rectangles
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
    found = []
    for prompt, response in zip(batch["prompt_ids"].to_list(), batch["response_ids"].to_list(), strict=True):
        if len(response):
            ids = torch.from_numpy(np.concatenate([prompt, response]))
            logits = model(input_ids=ids[None]).logits[0] / temperature
            log_probs = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            found.append(log_probs.gather(-1, ids[len(prompt) :, None])[:, 0])
    return torch.cat(found)


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
    """Of 40 tokens and 4 heads they would be 6,400 numbers; queries are 640, and what is seen 1,600."""
    query, key, value = (torch.randn(1, heads, 40, 4, requires_grad=True) for heads in (4, 2, 2))
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = causal_attention(query, key, value, Formula(cap=cap))
    assert kept and max(kept) <= 1600
    out.sum().backward()
    assert all(each.grad is not None for each in (query, key, value))


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
