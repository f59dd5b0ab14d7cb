"""When torch refuses an operation without a deterministic kernel, and when it only warns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rljob_worker.engines.deterministic import recompute_contexts, strict_backward
from rljob_worker.engines.tests.deterministic_job import FREE, STRICT, WARNS, NotedMode, deterministic_job, mode
from rljob_worker.errors import WrongField


class _Put(torch.autograd.Function):
    """Its backward pass writes some values in any order, of which torch has no other kernel on any device."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient).put_(torch.tensor([0]), gradient[:1])


def _noted_exp(values: torch.Tensor, noted: list[tuple[str, str]]) -> torch.Tensor:
    return torch.exp(NotedMode.apply(values, noted))


def test_a_backward_pass_is_strict_and_what_is_around_it_warns() -> None:
    noted: list[tuple[str, str]] = []
    with deterministic_job():
        end = NotedMode.apply(torch.ones(2, requires_grad=True), noted).sum()
        with strict_backward():
            end.backward()
        assert mode() == WARNS
    assert noted == [("forward", WARNS), ("backward", STRICT)]


def test_a_forward_pass_that_is_made_again_warns_as_the_first_one_did() -> None:
    noted: list[tuple[str, str]] = []
    with deterministic_job():
        values = torch.ones(2, requires_grad=True)
        end = checkpoint(_noted_exp, values, noted, use_reentrant=False, context_fn=recompute_contexts).sum()
        with strict_backward():
            end.backward()
        assert mode() == WARNS
    assert noted == [("forward", WARNS), ("forward", WARNS), ("backward", STRICT)]


def test_an_operation_without_such_a_kernel_is_named_with_the_field() -> None:
    with deterministic_job():
        end = _Put.apply(torch.ones(2, requires_grad=True)).sum()
        with (
            pytest.raises(WrongField, match=r"^training\.deterministic: .* has put_, of which") as caught,
            strict_backward(),
        ):
            end.backward()
        assert mode() == WARNS
    assert caught.value.field == "training.deterministic"


def test_another_error_stays_what_it_is() -> None:
    with deterministic_job():
        with pytest.raises(RuntimeError, match="does not require grad"), strict_backward():
            torch.ones(()).backward()
        assert mode() == WARNS


def test_jobs_that_do_not_ask_for_it_pay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: pytest.fail("that is not asked for"))
    with strict_backward():
        _Put.apply(torch.ones(2, requires_grad=True)).sum().backward()
    again = recompute_contexts()[1]
    with again:
        assert mode() == FREE
