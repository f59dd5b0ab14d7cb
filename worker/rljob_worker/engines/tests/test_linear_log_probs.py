"""The fused last layer against autograd on whole logits, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_worker.algorithms import KL_ESTIMATORS
from rljob_worker.engines.log_probs import linear as room
from rljob_worker.engines.log_probs.linear import EntropyUse, LastLayer, linear_log_probs
from rljob_worker.engines.tests.peak import Peak

TOKENS, HIDDEN, VOCABULARY = 7, 5, 11


def layer(*, with_bias: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Leaves (hidden, weight and perhaps bias), and targets two of which are the same token."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(TOKENS, HIDDEN), (VOCABULARY, HIDDEN)] + [(VOCABULARY,)] * with_bias
    leaves = [torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True) for shape in shapes]
    return leaves, torch.tensor([3, 10, 0, 3, 5, 1, 9])


def whole(
    leaves: list[torch.Tensor], targets: torch.Tensor, temperature: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.nn.functional.linear(*leaves)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    distribution = torch.log_softmax(logits / temperature, -1)
    return distribution.gather(-1, targets[:, None])[:, 0], -(distribution.exp() * distribution).sum(-1)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_values_and_gradients_are_those_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, with_bias: bool, cap: float | None, rows_at_once: int
) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", rows_at_once * VOCABULARY)
    (leaves, targets), weights = layer(with_bias=with_bias), torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
    expected = whole(leaves, targets, 0.7, cap)
    bias = leaves[2] if with_bias else None
    made = linear_log_probs(LastLayer(leaves[0], leaves[1], bias, cap), targets, 0.7, entropy="Loss")
    result = (made.log_probs, made.entropy)
    gradients = []
    for log_probs, entropy in (expected, result):
        assert entropy is not None
        gradients.append(torch.autograd.grad((weights * log_probs + weights.flip(0) * entropy).sum(), leaves))
    for mine, theirs in zip((*result, *gradients[1]), (*expected, *gradients[0]), strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, theirs, atol=1e-13, rtol=0)


def other(cap: float | None = None) -> LastLayer:
    """The last layer of another model, with as large a vocabulary but another hidden size."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((TOKENS, 3), (VOCABULARY, 3), (VOCABULARY,))
    return LastLayer(*(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes), cap)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_the_whole_divergence_is_that_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, rows_at_once: int
) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", rows_at_once * VOCABULARY)
    (leaves, targets), weights = layer(with_bias=True), torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
    reference = other(cap)
    bound = (lambda z: z) if cap is None else (lambda z: cap * torch.tanh(z / cap))
    log_p = torch.log_softmax(bound(torch.nn.functional.linear(*leaves)) / 0.7, -1)
    theirs = torch.nn.functional.linear(reference.hidden, reference.weight, reference.bias)
    log_q = torch.log_softmax(bound(theirs) / 0.7, -1)
    expected = KL_ESTIMATORS["Full"](log_p, log_q, log_p)
    result = linear_log_probs(LastLayer(*leaves, cap), targets, 0.7, reference=reference)
    assert result.full_kl is not None
    torch.testing.assert_close(result.full_kl, expected, atol=1e-13, rtol=0)
    both = [  # together with log-probs, whose gradient comes the same way
        torch.autograd.grad((weights * kl).sum() + log_probs.sum(), leaves)
        for kl, log_probs in ((result.full_kl, result.log_probs), (expected, whole(leaves, targets, 0.7, cap)[0]))
    ]
    for mine, wanted in zip(*both, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-13, rtol=0)


def test_an_entropy_that_is_a_figure_has_no_gradient_and_one_that_nobody_wants_is_not_there() -> None:
    leaves, targets = layer(with_bias=False)
    result = linear_log_probs(LastLayer(*leaves), targets, 1.0, entropy="Figure")
    log_probs, entropy = result.log_probs, result.entropy
    assert entropy is not None and not entropy.requires_grad
    torch.testing.assert_close(entropy, whole(leaves, targets, 1.0, None)[1])
    gradients = torch.autograd.grad(log_probs.sum(), leaves)
    expected = torch.autograd.grad(whole(leaves, targets, 1.0, None)[0].sum(), leaves)
    torch.testing.assert_close(gradients, expected)
    assert linear_log_probs(LastLayer(*leaves), targets, 1.0).entropy is None


class Largest(torch.overrides.TorchFunctionMode):
    """Elements of the largest tensor that any function gave while this was on."""

    elements = 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        out = function(*arguments, **(options or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


def test_no_tensor_has_a_word_for_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", 2 * VOCABULARY)
    leaves, targets = layer(with_bias=False)
    with Largest() as largest:
        result = linear_log_probs(LastLayer(*leaves), targets, 0.7, entropy="Loss", reference=other())
        assert result.entropy is not None and result.full_kl is not None
        (result.log_probs + result.entropy + result.full_kl).sum().backward()
    # 7 x 11 logits would be 77; the weight and its gradient have 11 x 5 = 55
    assert 22 <= largest.elements <= 55
    assert leaves[1].grad is not None


@pytest.mark.parametrize(
    ("cap", "temperature", "entropy", "again"),
    [
        (None, 1.0, "None", 4),
        (None, 1.0, "Figure", 4),
        (None, 1.0, "Loss", 5),
        (None, 0.7, "None", 5),
        (1.5, 1.0, "None", 6),
    ],
)
def test_the_last_chunks_are_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, temperature: float, entropy: EntropyUse, again: int
) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", VOCABULARY)
    leaves, targets = layer(with_bias=False)
    computed: list[slice] = []

    def logits(last: LastLayer, rows: slice) -> torch.Tensor:
        computed.append(rows)
        return whole_logits(last, rows)

    whole_logits = LastLayer.logits
    monkeypatch.setattr(LastLayer, "logits", logits)
    result = linear_log_probs(LastLayer(*leaves, cap=cap), targets, temperature, entropy=entropy)
    assert len(computed) == TOKENS
    result.log_probs.sum().backward()
    assert len(computed) == TOKENS + again


def test_a_second_backward_pass_computes_all_logits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", VOCABULARY)
    leaves, targets = layer(with_bias=False)
    total = linear_log_probs(LastLayer(*leaves), targets, 1.0).log_probs.sum()
    first, second = (torch.autograd.grad(total, leaves, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)


ROWS_AT_ONCE, WORDS = 64, 4096
CHUNK = ROWS_AT_ONCE * WORDS * 4


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Peak:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # which torch's profiler sets else
    return Peak()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("cap", "temperature", "entropy"),
    [(None, 1.0, "None"), (None, 1.0, "Figure"), (None, 1.0, "Loss"), (None, 0.7, "Figure"), (1.5, 1.0, "None")],
)
def test_a_pass_takes_the_chunks_that_the_plan_counts(
    monkeypatch: pytest.MonkeyPatch,
    peak: Peak,
    cap: float | None,
    temperature: float,
    entropy: EntropyUse,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", ROWS_AT_ONCE * WORDS)
    sizes = (5 * ROWS_AT_ONCE, WORDS)
    hidden, weight = (torch.randn(size, 2).to(dtype).requires_grad_() for size in sizes)
    with peak:
        result = linear_log_probs(
            LastLayer(hidden, weight, cap=cap),
            torch.zeros(len(hidden), dtype=torch.int64),
            temperature,
            entropy=entropy,
        )
        total = result.log_probs.sum() + (
            result.entropy.sum() if entropy == "Loss" and result.entropy is not None else 0
        )
        del result
        total.backward()
    planned = 4 * CHUNK if dtype == torch.float32 else 3 * CHUNK // 2 + 2 * CHUNK
    # what is kept of the entropies of a sixteenth, and the gradient of the weight
    assert planned - CHUNK < peak.bytes() < planned + CHUNK // 8


@pytest.mark.parametrize(
    ("dtype", "chunks", "temperature"),
    [(torch.float32, 2.0, 1.0), (torch.bfloat16, 2.5, 1.0), (torch.bfloat16, 2.5, 0.7)],
    ids=str,
)
def test_who_is_only_asked_has_a_distribution_and_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch, peak: Peak, dtype: torch.dtype, chunks: float, temperature: float
) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", ROWS_AT_ONCE * WORDS)
    hidden, weight = (torch.randn(size, 2, dtype=dtype, requires_grad=True) for size in (5 * ROWS_AT_ONCE, WORDS))
    with peak, torch.no_grad():
        targets = torch.zeros(len(hidden), dtype=torch.int64)
        linear_log_probs(LastLayer(hidden, weight), targets, temperature, entropy="Figure")
    assert peak.bytes() < chunks * CHUNK + CHUNK // 8


def test_a_frozen_layer_gets_no_gradient_and_passes_one_on() -> None:
    (hidden, weight), targets = layer(with_bias=False)
    log_probs = linear_log_probs(LastLayer(hidden, weight.detach()), targets, 0.7).log_probs
    log_probs.sum().backward()
    expected = torch.autograd.grad(whole([hidden, weight], targets, 0.7, None)[0].sum(), hidden)
    torch.testing.assert_close(hidden.grad, expected[0])


def test_in_bfloat16_gradients_of_chunks_are_added_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK_ELEMENTS", VOCABULARY)
    (hidden, weight), targets = layer(with_bias=False)
    low = [leaf.detach().bfloat16().requires_grad_() for leaf in (hidden, weight)]
    log_probs = linear_log_probs(LastLayer(*low), targets, 1.0).log_probs
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    exact = [leaf.detach().double().requires_grad_() for leaf in low]
    expected = torch.autograd.grad(whole(exact, targets, 1.0, None)[0].sum(), exact)
    for mine, theirs in zip(low, expected, strict=True):
        assert mine.grad is not None and mine.grad.dtype == torch.bfloat16
        torch.testing.assert_close(mine.grad.double(), theirs, atol=0.05, rtol=0.02)
