"""The entropy of distributions over tokens."""

import math

import pytest
import torch

from rljob_worker.algorithms.entropy import token_entropy
from rljob_worker.algorithms.tests.builders import double


def test_entropy_by_hand():
    # uniform over 4: ln 4;  (¾, ¼): -¾·ln ¾ - ¼·ln ¼ = 0.5623
    assert token_entropy(double(1, 1, 1, 1)[None]).item() == pytest.approx(math.log(4))
    assert token_entropy(double(math.log(3), 0)[None]).item() == pytest.approx(0.5623351446)


def test_excluded_entries_carry_no_entropy_and_no_gradient():
    logits = double(1, 1, -torch.inf)[None].requires_grad_()
    result = token_entropy(logits)
    result.sum().backward()
    assert result.item() == pytest.approx(math.log(2))
    assert torch.allclose(logits.grad, torch.zeros_like(logits))


def test_no_tokens():
    assert token_entropy(torch.zeros(0, 5)).tolist() == []
