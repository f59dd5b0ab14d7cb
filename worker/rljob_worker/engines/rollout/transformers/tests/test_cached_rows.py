"""Rows between their turns: what they begin with, who goes first, and what a next turn computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, MistralConfig

from rljob_worker.batch import Column
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.requests import Requests
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.transformers.cached_rows import CachedPrefix, CachedRow, CachedRows
from rljob_worker.engines.rollout.transformers.tests.subjects import CPU, SAMPLING, all_of, asked, engine_of
from rljob_worker.engines.tests.builders import END, VOCABULARY, write_config
from rljob_worker.errors import InvalidJob


def held(*tokens: int) -> CachedRow:
    return CachedRow(np.array(tokens), {0: (torch.zeros(1, len(tokens), 2), torch.zeros(1, len(tokens), 2))})


@pytest.mark.parametrize(
    ("sequence", "num_shared"), [([1, 2, 3, 4], 3), ([1, 2, 3], 2), ([1, 9, 3, 4], 1), ([9, 2, 3], 0), ([1], 0)]
)
def test_a_sequence_begins_with_what_is_alike_and_has_a_token_to_compute(sequence: list[int], num_shared: int) -> None:
    row = held(1, 2, 3)
    assert CachedPrefix.of(row, np.array(sequence)) == CachedPrefix(row if num_shared else None, num_shared)
    assert CachedPrefix.of(None, np.array(sequence)) == CachedPrefix()


def test_the_longest_unused_go_first() -> None:
    rows = CachedRows()
    for row_id, row in enumerate([held(1, 2), held(3), held(4, 5, 6)]):
        rows.keep(row_id, row)
    rows.touch(0)
    assert rows.num_tokens == 6 and rows.nbytes == 6 * 2 * 2 * 4
    rows.shrink(5)  # row 1 goes
    assert rows.num_tokens == 5 and rows.take(1) is None
    rows.shrink(2)  # row 2
    assert rows.num_tokens == 2 and rows.take(2) is None
    rows.keep(0, held(7))
    assert rows.num_tokens == 1 and rows.take(0).tokens.tolist() == [7] and rows.num_tokens == 0
    rows.keep(3, held(1))
    rows.release([3, 4])
    rows.shrink(-1)
    assert rows.num_tokens == rows.nbytes == 0


def counting(engine: TransformersRollout) -> list[int]:
    """Tokens of each forward from here on."""
    computed: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, inputs: computed.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    return computed


def turn(number: int, prompts: list[np.ndarray], max_tokens: int = 20) -> Requests:
    row_ids = np.arange(len(prompts))
    return Requests(
        row_ids,
        np.full_like(row_ids, number),
        Column.ragged(prompts),
        row_ids,
        np.full_like(row_ids, max_tokens),
        (SAMPLING,),
    )


def conversations(
    engine: TransformersRollout, num_turns: int, between: Callable[[np.ndarray], None], answer_tokens: int = 5
) -> list[np.ndarray]:
    """Three rows, each of whose turns is answered with some tokens; what there is of them in the end."""
    draw = np.random.default_rng(3)
    rows = [draw.integers(2, VOCABULARY, length) for length in (9, 1, 30)]
    for number in range(num_turns):
        engine.submit(turn(number, rows))
        while engine.load.running or engine.load.waiting:
            ended = engine.advance()
            between(ended.row_ids)
            for at, row in enumerate(ended.row_ids.tolist()):
                answer = (
                    draw.integers(2, VOCABULARY, answer_tokens) if number < num_turns - 1 else np.empty(0, np.int64)
                )
                rows[row] = np.concatenate([rows[row], ended.response_ids.row(at), answer])
    return rows


def write(directory: Path, kind: str) -> str:
    common = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    common |= {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "eos_token_id": END}
    if kind == "window of 6":
        MistralConfig(**common, sliding_window=6).save_pretrained(directory)
    elif kind == "bounded scores":
        Gemma2Config(**common, head_dim=8, sliding_window=6).save_pretrained(directory)
    else:
        return write_config(directory, kind)
    return str(directory)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2", "window of 6", "bounded scores"])
def test_turns_on_held_rows_are_those_of_rows_that_are_computed_anew(tmp_path: Path, kind: str) -> None:
    policy = random_policy(write(tmp_path, kind), torch.float64, 0)
    engines = [TransformersRollout(policy, CPU, (END,), 1.0, lambda: 1 << 28) for _ in range(2)]
    computed = [counting(engine) for engine in engines[:1]]
    anew = conversations(engines[1], 4, lambda row_ids: None)
    num_anew = sum(computed[0])
    computed[0].clear()
    result = conversations(engines[0], 4, engines[0].hold)
    assert [row.tolist() for row in result] == [row.tolist() for row in anew]
    assert sum(computed[0]) < num_anew


def test_eight_turns_compute_little_more_than_the_last_row_has() -> None:
    """Prompts of 9, 1 and 30 tokens and answers of 5. What is computed twice: the last token of each turn, which was
    drawn and not yet computed, is none; steps of rows that ended beside others are."""
    engine = engine_of()
    prefilled: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, inputs: prefilled.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    rows = conversations(engine, 8, engine.hold)
    drawn = sum(map(len, rows)) - (9 + 1 + 30) - 3 * 7 * 5
    of_prompts = sum(tokens for tokens in prefilled if tokens > 1)
    assert of_prompts + drawn <= 1.1 * sum(map(len, rows))


def test_held_rows_are_bounded_and_the_rest_is_computed_anew() -> None:
    anew = conversations(engine_of(), 4, lambda row_ids: None)
    most: list[int] = []
    engine = TransformersRollout(
        engine_of().model, CPU, (END,), 1.0, lambda: 440 * 512 - (engine.held_bytes("Cache") if most else 0)
    )
    engine.model.register_forward_hook(lambda *_: most.append(engine.held_bytes("Cache")))
    result = conversations(engine, 4, engine.hold)
    assert [row.tolist() for row in result] == [row.tolist() for row in anew]
    assert max(most) <= 440 * 512


def test_rows_that_together_are_beyond_the_room_are_refused_with_the_numbers() -> None:
    engine = engine_of(room=400)  # of which 100 tokens may be held
    engine.submit(replace(asked([0, 9, 10]), max_tokens=np.array([1, 1, 1])))
    ended = engine.advance().row_ids
    assert sorted(ended.tolist()) == [0, 9, 10]
    with pytest.raises(InvalidJob, match=r"row 10 and 1 more have 122 tokens, .* room to hold 100 .*memoryFraction"):
        engine.hold(np.array([9, 10]))
    engine.hold(np.array([0]))
    computed = counting(engine)
    engine.submit(asked([0], turn=1))
    all_of(engine)
    assert computed[0] == 1  # of a prompt of 3


@pytest.mark.parametrize("forget", ["release", "load_weights", "sleep"])
def test_what_is_forgotten_is_computed_anew(forget: str) -> None:
    engine = engine_of()
    engine.submit(asked([9]))
    ended = engine.advance()
    before = engine.held_bytes("Cache")
    engine.hold(ended.row_ids)
    # 60 tokens of the prompt and all but one of the response, of 512 bytes
    assert engine.held_bytes("Cache") - before == (60 + len(ended.response_ids.values) - 1) * 512
    if forget == "release":
        engine.release(np.array([9, 77]))
    elif forget == "load_weights":
        engine.load_weights([(name, item.clone()) for name, item in engine.model.named_parameters()], 1)
    else:
        engine.sleep("Cache")
        assert engine.held_bytes("Cache") == 0
    computed = counting(engine)
    engine.submit(asked([9], turn=1))
    all_of(engine)
    assert computed[0] == 60


def test_a_row_holds_its_last_turn() -> None:
    """Both turns are in the cache beside a row that goes on."""
    engine = engine_of()
    engine.submit(asked([0, 6]))
    first = engine.advance()
    engine.hold(first.row_ids)
    engine.submit(asked([0], turn=1))
    while not len(second := engine.advance()):
        pass
    engine.hold(second.row_ids)
    computed = counting(engine)
    tokens = np.concatenate([asked([0]).prompts.row(0), second.response_ids.values, [5, 6]])
    engine.submit(turn(2, [tokens]))
    engine.advance(1)
    assert computed[0] == 3  # the last token of the response, and two more
