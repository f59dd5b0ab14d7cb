"""Log-probs and entropies by hand and against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from rljob_worker.engines.log_probs import token_log_probs as module
from rljob_worker.engines.log_probs.token_log_probs import token_log_probs


def test_two_tokens_worked_by_hand() -> None:
    # at temperature 0.5 logits [0 0.5 ln 3] become [0 ln 3]: probabilities 1/4 and 3/4
    logits = torch.tensor([[0.0, 0.5 * math.log(3)]]).repeat(2, 1)
    log_probs, entropy = token_log_probs(logits, torch.tensor([0, 1]), 0.5, with_entropy=True)
    torch.testing.assert_close(log_probs, torch.tensor([0.25, 0.75]).log())
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(entropy, torch.tensor([expected, expected]))
    assert token_log_probs(logits, torch.tensor([0, 1]), 0.5)[1] is None


@pytest.mark.parametrize("chunk", [1, 8, 1000])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients_are_those_of_the_formula_for_any_chunk(
    monkeypatch: pytest.MonkeyPatch, chunk: int, with_entropy: bool
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 3, 1, 1, 2])

    def scores(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = token_log_probs(logits, targets, 0.7, with_entropy=with_entropy)
        return tuple(item for item in result if item is not None)

    assert torch.autograd.gradcheck(scores, (logits,))


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    log_probs, _ = token_log_probs(logits, torch.tensor([0, 1, 2]), 1.0)
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16
