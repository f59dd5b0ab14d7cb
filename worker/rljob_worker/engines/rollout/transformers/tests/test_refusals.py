"""What is refused, and what breaks in the middle, takes nothing from the requests beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.engines.rollout.transformers import decoding
from rljob_worker.engines.rollout.transformers.tests.subjects import (
    PROMPTS,
    ROWS,
    SAMPLING,
    all_of,
    as_rows,
    asked,
    engine_of,
    one_by_one,
)
from rljob_worker.errors import BadData, InvalidJob


def test_a_stop_text_that_is_refused_spoils_no_later_request() -> None:
    engine = engine_of()
    for _ in range(2):
        with pytest.raises(InvalidJob, match="no tokens of the model's tokenizer make this text"):
            engine.submit(asked([0], replace(SAMPLING, stop=("\0",))))
    engine.submit(asked(range(ROWS)))
    assert all_of(engine) == one_by_one()


def test_a_row_that_waits_or_runs_is_not_taken_twice() -> None:
    engine = engine_of()
    engine.submit(asked([1, 2]))
    with pytest.raises(BadData, match="row 3: it runs already"):
        engine.submit(asked([2, 5]))
    result = as_rows(engine.advance())
    (running,) = {1, 2} - set(result)
    with pytest.raises(BadData, match=f"row {running + 1}: it runs already"):
        engine.submit(asked([running, 5]))
    assert result | all_of(engine) == {row: one_by_one()[row] for row in (1, 2)}
    engine.submit(asked([2, 5]))
    assert set(all_of(engine)) == {2, 5}


def spoil_logits(model: torch.nn.Module, of: Callable[[torch.Tensor], Any]) -> Any:
    """of: which of the logits of a forward [1 or rows, ..., vocabulary] are not numbers; none where it gives None."""

    def spoil(module: torch.nn.Module, inputs: object, output: Any) -> None:
        if (at := of(output.logits)) is not None:
            output.logits[at] = torch.nan

    return model.register_forward_hook(spoil)


def test_one_row_that_is_not_finite_is_aborted_and_the_others_go_on() -> None:
    engine = engine_of()
    # logits of a step are [rows, 1, vocabulary], those of prompts [1, rows, vocabulary]
    hook = spoil_logits(engine.model, lambda logits: 1 if len(logits) == 4 else None)
    engine.submit(asked([1, 4, 6, 9]))
    for num_tokens in (1, 2):  # what had been drawn stays, and rows that wait again draw one as they come
        with pytest.raises(BadData, match=f"row 5: the logits of policy version 0 are not finite after {num_tokens} "):
            engine.advance()
    hook.remove()
    tokens, log_probs, _ = one_by_one()[4]
    assert as_rows(engine.abort(np.array([4]))) == {4: (tokens[:2], log_probs[:2], Ending.ABORTED)}
    assert all_of(engine) == {row: one_by_one()[row] for row in (1, 6, 9)}


def test_what_ended_before_logits_that_are_not_finite_comes_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 3, 9, 1 and 60 tokens in forwards of their own: rows of the first end with one token, and the second
    breaks; those of the others are not lost on the way."""
    monkeypatch.setattr(decoding, "PREFILL_TOKENS", 8)
    engine, calls = engine_of(), []

    def second(logits: torch.Tensor) -> slice | None:
        calls.append(len(logits))
        return slice(None) if len(calls) == 2 else None

    spoil_logits(engine.model, second)
    requests = asked(range(ROWS))
    engine.submit(replace(requests, max_tokens=np.where(requests.row_ids < 3, 1, requests.max_tokens)))
    with pytest.raises(BadData, match="row 4: .* after 0 tokens"):
        engine.advance()
    with pytest.raises(BadData, match="row 1: it runs already"):
        engine.submit(asked([0]))
    assert sorted(engine.advance().row_ids.tolist()) == [0, 1, 2]
    assert all_of(engine) == {row: result for row, result in one_by_one().items() if row >= 3}


def test_rows_that_could_not_be_generated_are_not_left_in_the_engine() -> None:
    engine, row_ids = engine_of(), np.arange(4)
    hook = spoil_logits(engine.model, lambda logits: 1 if len(logits) == 4 else None)
    with pytest.raises(BadData, match="row 2: "):
        generate(engine, PROMPTS[:1], SAMPLING, row_ids, 4, 9)
    hook.remove()
    assert len(engine.advance()) == 0
    assert len(generate(engine, PROMPTS[:1], SAMPLING, row_ids, 4, 9).endings) == 4
