"""Requests that come and go while others decode: what each gets is its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.batch import Column
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.requests import Ending, Load, Requests, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.transformers.tests.subjects import (
    CPU,
    LETTERS,
    PROMPTS,
    ROWS,
    SAMPLING,
    all_of,
    as_rows,
    asked,
    engine_of,
    one_by_one,
)
from rljob_worker.engines.tests.builders import END, write_config
from rljob_worker.errors import BadData, InvalidJob


@settings(max_examples=6)
@given(
    waves=st.permutations(range(ROWS)).flatmap(
        lambda rows: st.lists(st.integers(1, ROWS - 1), max_size=3, unique=True).map(
            lambda cuts: [part.tolist() for part in np.split(np.array(rows), sorted(cuts))]
        )
    ),
    room=st.sampled_from([84, 100, 200, 400, 10**6]),
    aborted=st.sets(st.integers(0, ROWS - 1), max_size=4),
    reloads=st.booleans(),
)
def test_a_row_gets_the_same_whatever_runs_beside_it(
    waves: list[list[int]], room: int, aborted: set[int], reloads: bool
) -> None:
    engine, parts = engine_of(room), []
    same = [(name, tensor.clone()) for name, tensor in engine.model.named_parameters()]
    for wave in waves:
        engine.submit(asked(wave))
        parts.append(engine.advance())
        if reloads:
            engine.load_weights(same, version=0)
    stopped = as_rows(engine.abort(np.array(sorted(aborted), np.int64)))
    outcome = as_rows(*parts) | all_of(engine)
    assert not set(stopped) & set(outcome)
    assert outcome == {row: result for row, result in one_by_one().items() if row not in stopped}
    for row, (tokens, log_probs, ending) in stopped.items():
        whole = one_by_one()[row]
        assert ending == Ending.ABORTED and (tokens, log_probs) == (whole[0][: len(tokens)], whole[1][: len(tokens)])


@settings(max_examples=6)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["advance", "pause", "resume", "submit again", "same weights"]),
            st.integers(1, 9),
            st.sets(st.integers(0, ROWS - 1), max_size=5),
        ),
        max_size=12,
    ),
    room=st.sampled_from([84, 200, 10**6]),
)
def test_interruptions_change_no_token(calls: list[tuple[str, int, set[int]]], room: int) -> None:
    engine, parts = engine_of(room), []
    same = [(name, tensor.clone()) for name, tensor in engine.model.named_parameters()]
    engine.submit(asked(range(ROWS)))
    for call, most_steps, rows in calls:
        ended = {row for part in parts for row in part.row_ids.tolist()}
        ids = np.array(sorted(rows - ended), np.int64)
        if call == "pause":
            engine.pause(ids)
        elif call == "resume":
            engine.resume(ids)
        elif call == "same weights":
            engine.load_weights(same, version=0)
        elif call == "submit again" and len(ids):
            begun = engine.peek(ids)
            assert [row.tolist() for row in engine.abort(ids).response_ids.to_list()]
            engine.submit(replace(asked(ids.tolist()), begun=begun))
        parts.append(engine.advance(most_steps))
    engine.resume(np.array(sorted(set(range(ROWS)) - {row for part in parts for row in part.row_ids.tolist()})))
    assert as_rows(*parts) | all_of(engine) == one_by_one()


def test_wake_ends_the_step_that_another_thread_is_in() -> None:
    engine, calls = engine_of(), []

    def wake_in_the_third(*_: object) -> None:
        calls.append(None)
        if len(calls) == 3:
            caller = Thread(target=engine.wake)
            caller.start()
            caller.join()

    engine.model.register_forward_hook(wake_in_the_third)
    row = max(one_by_one(), key=lambda row: len(one_by_one()[row][0]))
    engine.submit(asked([row]))
    assert len(engine.advance()) == 0
    assert engine.peek(np.array([row])).response_ids.values.tolist() == one_by_one()[row][0][:3]
    assert all_of(engine) == {row: one_by_one()[row]}  # what it was woken for is over


def test_requests_with_seeds_of_their_own_decode_as_one() -> None:
    """What is drawn alike is drawn at once, whatever its seed; 64 seeds."""
    engine, ways = engine_of(), tuple(Sampling(seed=seed) for seed in range(64))
    row_ids = np.arange(64)
    one = Requests(row_ids, 0 * row_ids, Column.ragged(PROMPTS[:1]), 0 * row_ids, 0 * row_ids + 5, ways, row_ids)
    engine.submit(one)
    result, alone = all_of(engine), {}
    for row in (0, 63):
        engine.submit(replace(asked([0], ways[row]), row_ids=row_ids[[row]], max_tokens=np.array([5])))
        alone |= all_of(engine)
    assert {row: result[row] for row in alone} == alone


def test_what_there_is_of_a_load() -> None:
    engine = engine_of(room=300)
    engine.submit(asked(range(ROWS)))
    assert engine.load == Load(running=0, waiting=ROWS, paused=0, free_tokens=300)
    engine.advance(1)
    load = engine.load
    assert load.running + load.waiting == ROWS and load.running > 0 and load.free_tokens < 300
    engine.pause(np.arange(ROWS))
    assert engine.load == Load(running=0, waiting=0, paused=ROWS, free_tokens=300)


def test_rows_are_handed_out_as_soon_as_they_end() -> None:
    engine = engine_of()
    engine.submit(asked(range(ROWS)))
    lengths = {row: len(tokens) for row, (tokens, _, _) in one_by_one().items()}
    order = []
    while len(ended := engine.advance()):
        assert len({lengths[row] for row in ended.row_ids.tolist()}) == 1  # what ends in one step
        order += ended.row_ids.tolist()
    assert sorted(order) == list(range(ROWS)) and [lengths[row] for row in order] == sorted(lengths.values())


def test_aborted_requests_give_what_they_have_and_unknown_rows_nothing() -> None:
    engine = engine_of(room=300)
    engine.submit(asked(range(ROWS)))
    shortest = engine.advance()
    ended = as_rows(engine.abort(np.array([2, 11, 99])))
    assert set(ended) == {2, 11} - set(shortest.row_ids.tolist())
    assert ended[11] == ([], [], Ending.ABORTED)  # it waited
    assert len(ended[2][0]) and ended[2][0] == one_by_one()[2][0][: len(ended[2][0])]
    assert len(engine.abort(np.array([2, 11]))) == 0
    # the row may ask again
    engine.submit(asked([2, 11]))
    assert {row: result for row, result in all_of(engine).items() if row in (2, 11)} == {
        row: one_by_one()[row] for row in (2, 11)
    }


def test_what_runs_goes_on_with_new_weights_and_says_which_made_each_token() -> None:
    engine, other = engine_of(), engine_of(seed=1)
    engine.submit(asked(range(ROWS)))
    parts = [engine.advance()]
    engine.load_weights(other.model.named_parameters(), version=4)
    while len(ended := engine.advance()):
        parts.append(ended)
    assert set(parts[0].token_versions.values.tolist()) == {0}
    old = one_by_one()
    for part in parts[1:]:
        for at, row in enumerate(part.row_ids.tolist()):
            tokens, versions = part.response_ids.row(at).tolist(), part.token_versions.row(at).tolist()
            assert versions == sorted(versions) and versions.count(4) > 0
            kept = versions.count(0)
            assert tokens[:kept] == old[row][0][:kept]
            # the rest is what the new policy says to prompt and kept tokens
            follows = np.concatenate([PROMPTS[row // 3], tokens])[None]
            expected = log_probs_of(other, follows)[-len(tokens) :][kept:]
            np.testing.assert_allclose(part.log_probs.row(at)[kept:], expected, atol=1e-5)


def log_probs_of(engine: TransformersRollout, ids: np.ndarray) -> np.ndarray:
    """Log-prob of every token but the first, by one forward of the whole."""
    from rljob_worker.engines.attention.varlen import PackedLayout

    length = ids.shape[1]
    layout = PackedLayout.build(np.arange(length), np.array([length]), length, CPU)
    with torch.no_grad():
        logits = engine.model(input_ids=torch.from_numpy(ids), use_cache=False, attention_layout=layout).logits[0]
    result = torch.log_softmax(logits[:-1], -1).gather(-1, torch.from_numpy(ids[0, 1:, None]))
    return result[:, 0].numpy()


def test_rows_of_several_samplings_decode_together() -> None:
    greedy, warm = replace(SAMPLING, temperature=0.0), replace(SAMPLING, seed=8)
    alone = {}
    for sampling, rows in ((greedy, [0, 4]), (warm, [1, 3]), (SAMPLING, [2])):
        engine = engine_of()
        engine.submit(asked(rows, sampling))
        alone |= all_of(engine)
    engine = engine_of()
    for sampling, rows in ((greedy, [0, 4]), (warm, [1, 3]), (SAMPLING, [2])):
        engine.submit(asked(rows, sampling))
    assert all_of(engine) == alone
    assert alone[1] != one_by_one()[1]


def test_every_turn_of_a_row_draws_anew() -> None:
    engine = engine_of()
    engine.submit(asked(range(ROWS), turn=1))
    later = all_of(engine)
    assert sum(later[row] == one_by_one()[row] for row in range(ROWS)) <= 1


def letters_of(tokens: list[int]) -> str:
    return b"".join(LETTERS.token_bytes[token] for token in tokens).decode()


def test_stop_texts_end_responses_where_they_stand_and_stay_in_them() -> None:
    free = one_by_one()
    longest = max(free, key=lambda row: len(free[row][0]))
    text = letters_of(free[longest][0][3:6])
    stop = (text, "ZZZZZZZ")
    engine = engine_of(room=400)
    engine.submit(asked(range(0, ROWS, 2), replace(SAMPLING, stop=stop)))
    engine.submit(asked(range(1, ROWS, 2)))
    result = all_of(engine)
    for row, (tokens, log_probs, ending) in free.items():
        at = letters_of(tokens).find(text) if row % 2 == 0 else -1
        end = at + 3 if at >= 0 else len(tokens)
        stopped = Ending.END_TOKEN if tokens[:end][-1] == END else Ending.STOP
        assert result[row] == (tokens[:end], log_probs[:end], stopped if at >= 0 else ending), row
    assert longest % 2 == 0 and len(result[longest][0]) == 6 and result[longest][2] == Ending.STOP


def test_a_stop_text_is_matched_over_tokens_that_came_before_new_weights() -> None:
    free = one_by_one()
    row = max(free, key=lambda row: len(free[row][0]))
    engine = engine_of()
    request = asked([row], replace(SAMPLING, stop=(letters_of(free[row][0][:6]),)))
    other, zero, one = np.array([999]), np.array([0]), np.array([1])
    engine.submit(request)
    # a row of one token ends at once, when the other has got as many
    engine.submit(Requests(other, zero, Column.ragged(PROMPTS), zero, one, (SAMPLING,)))
    assert engine.advance().row_ids.tolist() == [999]
    engine.load_weights([(name, item.detach().clone()) for name, item in engine.model.named_parameters()], 1)
    assert all_of(engine)[row][0] == free[row][0][:6]


def test_a_stop_text_that_cannot_be_is_refused_when_it_is_submitted() -> None:
    engine = engine_of()
    with pytest.raises(InvalidJob, match="no tokens of the model's tokenizer make this text"):
        engine.submit(asked([0], replace(SAMPLING, stop=("é",))))
    assert not len(engine.advance())


def test_stop_tokens_end_a_response_and_stay_in() -> None:
    whole = one_by_one()
    row = max(whole, key=lambda row: len(whole[row][0]))
    tokens = whole[row][0]
    stop = tokens[2]
    engine = engine_of()
    engine.submit(asked([row], replace(SAMPLING, stop_token_ids=(stop,))))
    result = all_of(engine)[row]
    assert result[0] == tokens[: tokens.index(stop) + 1] and result[2] == Ending.STOP


def test_token_0_may_end_a_response() -> None:
    engine = engine_of()
    zero_ends = TransformersRollout(engine.model, CPU, (0,))
    zero_ends.submit(asked(range(ROWS)))
    ended = all_of(zero_ends).values()
    assert any(ending == Ending.END_TOKEN for _, _, ending in ended)
    assert all((ending == Ending.END_TOKEN) == (tokens[-1] == 0) for tokens, _, ending in ended)


def test_a_response_longer_than_the_models_positions_is_refused() -> None:
    engine = engine_of()  # 256 positions
    requests = replace(asked([0, 9]), max_tokens=np.array([253, 197]))
    with pytest.raises(
        InvalidJob, match=r"row 10: a prompt of 60 tokens and a response of up to 197 .* 256 that a row"
    ):
        engine.submit(requests)
    engine.submit(replace(requests, max_tokens=np.array([253, 196])))


@pytest.mark.parametrize(("version", "reason"), [(0, "nothing is trained yet: .* name another"), (3, "has diverged")])
def test_logits_that_are_not_finite_name_the_row_and_the_version(version: int, reason: str) -> None:
    engine = engine_of()
    broken = [(name, torch.full_like(tensor, torch.nan)) for name, tensor in engine.model.named_parameters()]
    engine.submit(asked([5]))
    engine.load_weights(broken, version=version)
    words = f"row 6: the logits of policy version {version} are not finite after 0 tokens of its response: .*{reason}"
    with pytest.raises(BadData, match=words):
        engine.advance()


def test_a_row_that_the_cache_has_no_room_for_is_refused_with_the_numbers() -> None:
    engine = engine_of(room=83)
    with pytest.raises(InvalidJob, match="memoryFraction 1.0: of 0.00 GiB .* row 12 of up to 84 tokens needs"):
        engine.submit(asked([0, 11]))
    engine.submit(asked([0, 10]))


def test_the_cache_never_has_more_than_its_room() -> None:
    for room in (84, 150, 300):
        engine, most = engine_of(room), []
        engine.model.register_forward_hook(lambda *_, held=most, of=engine: held.append(of.held_bytes("Cache")))
        engine.submit(asked(range(ROWS)))
        assert all_of(engine) == one_by_one()
        assert 0 < max(most) <= room * 512


def test_a_longer_prompt_joins_rows_that_decode() -> None:
    engine = engine_of()
    engine.submit(asked([0, 6]))
    result = as_rows(engine.advance())
    engine.submit(asked([9]))  # 60 tokens, beside a row of a few
    assert result | all_of(engine) == {row: one_by_one()[row] for row in (0, 6, 9)}


def test_rows_that_have_no_room_any_more_wait_and_go_on(tmp_path: Path) -> None:
    # 1000 tokens: three rows of 259 columns, three of 333, then two of 403
    policy = random_policy(write_config(tmp_path, max_position_embeddings=512), torch.float64, 0)
    asked_for = Requests(
        np.arange(4),
        np.zeros(4, np.int64),
        Column.ragged(PROMPTS[:1]),
        np.zeros(4, np.int64),
        np.full(4, 400),
        (SAMPLING,),
    )
    result = []
    for room in (10**6, 1000):
        engine, held = TransformersRollout(policy, CPU, (), 1.0, lambda room=room: room * 512), []
        hook = policy.register_forward_hook(lambda *_, held=held, of=engine: held.append(of.held_bytes("Cache")))
        engine.submit(asked_for)
        result.append(all_of(engine))
        hook.remove()
        assert max(held) <= room * 512
    assert result[0] == result[1] and len(result[0]) == 4


@pytest.fixture
def nothing_is_zero() -> Iterator[None]:
    """Memory that was not written holds what is not a number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("first", [range(9), range(9, ROWS)])
def test_memory_that_nothing_was_written_to_is_not_seen(nothing_is_zero: None, first: range) -> None:
    # prompts of 3, 9 and 1 tokens, and of 60: who comes first has no columns that the others need, or theirs are more
    engine = engine_of()
    engine.submit(asked(first))
    parts = [engine.advance()]
    engine.submit(asked(sorted(set(range(ROWS)) - set(first))))
    while len(parts[-1]):
        parts.append(engine.advance())
    assert as_rows(*parts) == one_by_one()
