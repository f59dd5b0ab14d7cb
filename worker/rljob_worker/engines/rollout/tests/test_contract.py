"""What every rollout engine keeps, whatever library is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.http.engine import HTTPRollout
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, PartialResponses, Requests, Sampling
from rljob_worker.engines.rollout.tests.malformed import MALFORMATIONS, spoilt
from rljob_worker.engines.rollout.tests.subjects import (
    END,
    ENGINES,
    POSITIONS,
    VOCABULARY,
    Weights,
    other_weights,
    weights_of,
    write_model,
)
from rljob_worker.errors import BadData, InvalidJob

Rows = dict[int, tuple[list[int], list[float], list[int], Ending]]
"""tokens, log-probs, versions and ending of each row"""
PROMPT = np.arange(2, 72)
"""Longer than two blocks of a prefix cache."""
FREE = Sampling(seed=3)
SLOW = {"HTTP": pytest.mark.slow}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stock(path: str) -> PreTrainedModel:
    """The tests' model, as stock transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=[pytest.param(name, marks=SLOW.get(name, ())) for name in sorted(ENGINES)])
def started(request: pytest.FixtureRequest, path: str) -> Iterator[RolloutEngine]:
    engine = ENGINES[request.param](path)
    yield engine
    engine.close()


@pytest.fixture
def engine(started: RolloutEngine, stock: PreTrainedModel) -> RolloutEngine:
    """With nothing running, at version 1 of the first weights."""
    started.abort(np.arange(1000))
    started.load_weights(weights_of(stock), 1)
    return started


def requests(
    row_ids: list[int],
    max_tokens: int | list[int] = 12,
    sampling: Sampling = FREE,
    prompts: list[np.ndarray] | None = None,
    turn: int = 0,
) -> Requests:
    """One prompt for all, or one each."""
    lengths = [max_tokens] * len(row_ids) if isinstance(max_tokens, int) else max_tokens
    return Requests(
        row_ids=np.array(row_ids, np.int64),
        turns=np.full(len(row_ids), turn, np.int64),
        prompts=Column.ragged(prompts or [PROMPT]),
        prompt_of=np.arange(len(row_ids)) if prompts else np.zeros(len(row_ids), np.int64),
        max_tokens=np.array(lengths, np.int64),
        samplings=(sampling,),
    )


def rows_of(ended: EndedRequests) -> Rows:
    columns = (ended.response_ids, ended.log_probs, ended.token_versions)
    tokens, log_probs, versions = ([row.tolist() for row in column.to_list()] for column in columns)
    endings = map(Ending, ended.endings.tolist())
    return dict(zip(ended.row_ids.tolist(), zip(tokens, log_probs, versions, endings, strict=True), strict=True))


def drain(engine: RolloutEngine) -> Rows:
    result: Rows = {}
    while len(ended := engine.advance()):
        result |= rows_of(ended)
    return result


def run(engine: RolloutEngine, asked: Requests) -> Rows:
    engine.submit(asked)
    return drain(engine)


def log_probs_by(
    model: PreTrainedModel, weights: Weights, prompt: Indices, tokens: list[int], temperature: float = 1.0
) -> np.ndarray:
    """One plain forward of stock transformers."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = torch.func.functional_call(model, dict(weights), (ids,), tie_weights=True).logits[0]
        wanted = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
    return wanted.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_model_at_the_temperature(
    engine: RolloutEngine, stock: PreTrainedModel, temperature: float
) -> None:
    prompts = [PROMPT, np.array([5]), np.arange(40, 75)]
    rows = run(engine, requests([7, 8, 9], 20, Sampling(temperature=temperature, seed=1), prompts))
    for prompt, row_id in zip(prompts, [7, 8, 9], strict=True):
        tokens, log_probs, _, _ = rows[row_id]
        expected = log_probs_by(stock, weights_of(stock), prompt, tokens, temperature)
        np.testing.assert_allclose(log_probs, expected, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_likely_tokens_come_with_the_rows_that_ask_and_change_no_row(
    engine: RolloutEngine, stock: PreTrainedModel, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, seed=1)
    numbers, prompts = {7: 3, 8: 0, 9: 20, 10: 3}, [PROMPT, np.array([5]), np.arange(40, 75), np.array([6])]
    alone = run(engine, requests(list(numbers), [20, 6, 9, 15], sampling, prompts))
    different = sorted(set(numbers.values()))
    asked = replace(
        requests(list(numbers), [20, 6, 9, 15], sampling, prompts),
        samplings=tuple(replace(sampling, top_log_probs=number) for number in different),
        sampling_of=np.array([different.index(number) for number in numbers.values()]),
    )
    if isinstance(engine, HTTPRollout):
        with pytest.raises(InvalidJob, match="top_log_probs 3: the engine gives the log-prob of the drawn token alone"):
            engine.submit(asked)
        return
    engine.submit(asked)
    ended = [engine.advance(4)]
    engine.pause(np.array([7]))
    ended.append(engine.advance(1))
    engine.resume(np.array([7]))
    while len(more := engine.advance()):
        ended.append(more)
    rows = {row: entry for part in ended for row, entry in rows_of(part).items()}
    assert {row: entry[0] for row, entry in rows.items()} == {row: entry[0] for row, entry in alone.items()}
    top = {row: item for part in ended for row, item in part.top_log_probs.items()}
    assert set(top) == {7, 9, 10}
    for prompt, row_id in zip([prompts[0], *prompts[2:]], [7, 9, 10], strict=True):
        tokens, log_probs, _, _ = rows[row_id]
        with torch.no_grad():
            logits = stock(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / (temperature or 1.0), -1)
        likely = expected.topk(numbers[row_id], -1)
        np.testing.assert_allclose(top[row_id].log_probs, likely.values, atol=1e-5)
        at_ids = expected.gather(1, torch.from_numpy(top[row_id].tokens).long())
        np.testing.assert_allclose(at_ids, likely.values, atol=1e-5)
        own = top[row_id].tokens == np.array(tokens)[:, None]
        assert own.any(1).any(), "some drawn tokens are among the likely ones"
        np.testing.assert_allclose(top[row_id].log_probs[own], np.array(log_probs)[own.any(1)], atol=1e-6)


def test_at_temperature_0_the_most_likely_tokens_come_with_log_probs_at_1(
    engine: RolloutEngine, stock: PreTrainedModel
) -> None:
    tokens, log_probs, _, _ = run(engine, requests([7], 20, Sampling(temperature=0)))[7]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, weights_of(stock), PROMPT, tokens), atol=1e-5)
    for position in range(len(tokens)):
        with torch.no_grad():
            best = stock(torch.tensor([[*PROMPT, *tokens[:position]]])).logits[0, -1].argmax()
        assert tokens[position] == best


def test_a_response_does_not_depend_on_what_runs_beside_it(engine: RolloutEngine) -> None:
    prompts = [np.arange(2, 2 + length) for length in (40, 3, 70, 1, 33, 9, 64, 12, 5, 50, 2, 31, 32, 65)]
    ids = list(range(100, 114))
    together = run(engine, requests(ids, 12, FREE, prompts))  # two wait until others have ended
    backwards = run(engine, requests(ids[::-1], 12, FREE, prompts[::-1]))
    alone = {}
    for row, prompt in zip(ids, prompts, strict=True):
        alone |= run(engine, requests([row], 12, FREE, [prompt]))
    for row in ids:
        assert together[row][0] == backwards[row][0] == alone[row][0]
        np.testing.assert_allclose(together[row][1], alone[row][1], atol=1e-5)


def test_more_prompts_than_one_forward_computes(engine: RolloutEngine) -> None:
    """40 prompts of 200 tokens."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(2, VOCABULARY, 200) for _ in range(40)]
    rows = run(engine, requests(list(range(40)), 2, FREE, prompts))
    (alone,) = run(engine, requests([39], 2, FREE, prompts[39:])).values()
    assert len(rows) == 40 and rows[39][0] == alone[0]


def test_randomness_belongs_to_seed_row_and_turn(engine: RolloutEngine) -> None:
    (first,) = run(engine, requests([1])).values()
    again, other_row = run(engine, requests([1])), run(engine, requests([2]))
    other_turn = run(engine, requests([1], turn=1))
    other_seed = run(engine, requests([1], sampling=Sampling(seed=4)))
    assert again[1][0] == first[0]
    assert (
        len({tuple(rows[0]) for result in (again, other_row, other_turn, other_seed) for rows in result.values()}) == 4
    )


def test_rows_of_one_prompt_differ(engine: RolloutEngine) -> None:
    rows = run(engine, requests(list(range(16))))
    assert len({tuple(tokens) for tokens, *_ in rows.values()}) == 16


def test_each_row_has_a_length_of_its_own(engine: RolloutEngine) -> None:
    full = run(engine, requests([1, 2, 3], 9))
    rows = run(engine, requests([1, 2, 3], [2, 9, 1]))
    for row, length in ((1, 2), (2, 9), (3, 1)):
        assert rows[row][0] == full[row][0][:length]
    assert {row for row, result in rows.items() if result[3] is Ending.LENGTH} >= {3}


def test_an_end_token_stays_in_and_says_so(engine: RolloutEngine) -> None:
    rows = run(engine, requests(list(range(64)), 60))
    endings = {Ending.END_TOKEN: 0, Ending.LENGTH: 0}
    for tokens, _, _, ending in rows.values():
        endings[ending] += 1
        assert END not in tokens[:-1]
        assert (tokens[-1] == END) == (ending is Ending.END_TOKEN)
    assert min(endings.values()) > 0


def test_a_stop_token_ends_a_response_where_it_first_comes(engine: RolloutEngine) -> None:
    tokens, _, _, _ = run(engine, requests([1], 30))[1]
    stop = tokens[6]
    stopped = run(engine, requests([1], 30, Sampling(seed=3, stop_token_ids=(stop,))))[1]
    assert stopped[0] == tokens[: tokens.index(stop) + 1]
    assert stopped[3] is (Ending.END_TOKEN if stop == END else Ending.STOP)


def test_the_token_that_ends_a_response_may_be_its_last(engine: RolloutEngine) -> None:
    tokens, _, _, _ = run(engine, requests([1], 30))[1]
    at = tokens.index(tokens[6])
    stopped = run(engine, requests([1], at + 1, Sampling(seed=3, stop_token_ids=(tokens[6],))))[1]
    assert stopped[0] == tokens[: at + 1] and stopped[3] is Ending.STOP


def test_short_responses_are_there_before_long_ones(engine: RolloutEngine) -> None:
    engine.submit(requests([1, 6], [2, 40], Sampling(seed=5)))  # row 6 has 40 with the draws of each engine
    assert list(rows_of(engine.advance())) == [1]
    engine.submit(requests([3], 3))
    assert set(drain(engine)) == {6, 3}
    assert len(engine.advance()) == 0


def test_nothing_runs_until_it_is_asked_for(engine: RolloutEngine) -> None:
    assert len(engine.advance()) == 0
    assert run(engine, requests([])) == {}


def test_aborted_rows_give_what_there_is_of_them(engine: RolloutEngine) -> None:
    asked = requests(list(range(1, 9)), [4] + 7 * [40])
    whole = run(engine, asked)
    longest = max(whole, key=lambda row: len(whole[row][0]))
    engine.submit(asked)
    first = rows_of(engine.advance())
    aborted = rows_of(engine.abort(np.array([longest, 99])))
    assert list(aborted) == [longest] and aborted[longest][3] is Ending.ABORTED
    some = len(aborted[longest][0])
    assert 0 < some < len(whole[longest][0])
    assert all(aborted[longest][column] == whole[longest][column][:some] for column in (0, 1))
    tokens = {row: result[0] for row, result in (first | drain(engine)).items()}
    assert tokens == {row: result[0] for row, result in whole.items() if row != longest}


def test_a_row_may_come_again_after_it_was_aborted(engine: RolloutEngine) -> None:
    engine.submit(requests([1], 40))
    (nothing,) = rows_of(engine.abort(np.array([1]))).values()
    assert nothing[0] == [] and nothing[3] is Ending.ABORTED
    assert len(run(engine, requests([1]))[1][0]) > 0


def drawn_of(rows: Rows) -> dict[int, list[int]]:
    return {row: tokens for row, (tokens, *_) in rows.items()}


def begun_of(rows: Rows, row_ids: list[int]) -> PartialResponses:
    """What there is of rows, as a request brings it."""
    tokens, log_probs, versions = ([rows[row][column] for row in row_ids] for column in range(3))
    return PartialResponses(Column.ragged(tokens), Column.ragged(log_probs, "float32"), Column.ragged(versions))


@pytest.mark.parametrize("bounds", [(1,), (3, 1, 7)])
def test_bounds_of_advance_change_nothing(engine: RolloutEngine, bounds: tuple[int, ...]) -> None:
    asked = requests(list(range(16)), [1, 5, 30, 40] * 4)  # four wait until others have ended
    whole, result = run(engine, asked), dict[int, Any]()
    engine.submit(asked)
    for call in count():
        if len(result) == len(whole):
            break
        result |= rows_of(engine.advance(bounds[call % len(bounds)]))
    assert result.keys() == whole.keys() and engine.load.running == engine.load.waiting == 0
    for row in whole:
        assert result[row][0] == whole[row][0] and result[row][2:] == whole[row][2:]
        np.testing.assert_allclose(result[row][1], whole[row][1], atol=1e-5)


def test_advance_returns_after_as_many_steps_or_when_it_is_woken(engine: RolloutEngine) -> None:
    whole = run(engine, requests([1, 2], 40))
    engine.submit(requests([1, 2], 40))
    assert len(engine.advance(3)) == 0
    assert engine.peek(np.array([2, 1])).response_ids.to_list()[0].tolist() == whole[2][0][:3]
    engine.wake()
    assert len(engine.advance()) == 0
    there = engine.peek(np.array([1]))
    assert there.response_ids.values.tolist() == whole[1][0][:4]
    assert there.token_versions.values.tolist() == [1] * 4
    np.testing.assert_allclose(there.log_probs.values, whole[1][1][:4], atol=1e-5)
    assert drawn_of(drain(engine)) == drawn_of(whole)


def test_paused_rows_go_on_where_they_were(engine: RolloutEngine) -> None:
    asked = requests(list(range(1, 15)), [3] + 13 * [40])  # two wait until others have ended
    whole = run(engine, asked)
    engine.submit(asked)
    engine.advance(2)
    free = engine.load.free_tokens
    engine.pause(np.array([2, 14, 2]))
    load = engine.load
    assert (load.running + load.waiting, load.paused) == (12, 2)
    engine.pause(np.array([2]))
    with pytest.raises(BadData, match="row 3: it runs already"):
        engine.submit(requests([2]))
    rest = drain(engine)
    assert len(rest) == 12 and engine.load.free_tokens > free
    assert engine.peek(np.array([14, 2])).response_ids.to_list()[1].tolist() == whole[2][0][:2]
    engine.resume(np.array([14, 2]))
    assert drawn_of(rest | drain(engine)) == drawn_of(whole)


def test_paused_rows_go_on_with_new_weights_or_are_aborted(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    whole = run(engine, requests([1, 2], 40))
    engine.submit(requests([1, 2], 40))
    engine.advance(4)
    engine.pause(np.array([1, 2]))
    assert len(engine.advance()) == 0
    new = other_weights(stock)
    engine.load_weights(new, 2)
    aborted = rows_of(engine.abort(np.array([2])))
    assert aborted == {2: (whole[2][0][:4], aborted[2][1], [1] * 4, Ending.ABORTED)}
    engine.resume(np.array([1]))
    tokens, log_probs, versions, _ = drain(engine)[1]
    assert tokens[:4] == whole[1][0][:4] and versions == [1] * 4 + [2] * (len(tokens) - 4)
    np.testing.assert_allclose(log_probs[4:], log_probs_by(stock, new, PROMPT, tokens)[4:], atol=1e-5)


def test_a_row_that_is_aborted_and_comes_again_with_its_tokens_gets_the_same(engine: RolloutEngine) -> None:
    whole = run(engine, requests([1, 2, 3], 40, turn=2))
    engine.submit(requests([1, 2, 3], 40, turn=2))
    engine.advance(5)
    some = rows_of(engine.abort(np.array([1, 3])))
    engine.submit(replace(requests([3, 1], 40, turn=2), begun=begun_of(some, [3, 1])))
    result = drain(engine)
    assert drawn_of(result) == drawn_of(whole)
    for row in (1, 3):
        assert result[row][1][:5] == some[row][1]
        np.testing.assert_allclose(result[row][1], whole[row][1], atol=1e-5)


def test_draws_go_on_from_the_position_that_is_asked_for(engine: RolloutEngine) -> None:
    """What was drawn before is in the prompt."""
    tokens = run(engine, requests([1], 40))[1][0]
    longer = replace(requests([1], 40 - 6, prompts=[np.array([*PROMPT, *tokens[:6]])]), next_draws=np.array([6]))
    assert run(engine, longer)[1][0] == tokens[6:]


def test_requests_of_one_call_may_be_drawn_in_different_ways(engine: RolloutEngine) -> None:
    ways = (Sampling(temperature=0), Sampling(temperature=0.7, seed=9), Sampling(seed=3, stop_token_ids=(5, 6, 7)))
    alone = {row: run(engine, requests([row], 30, ways[way]))[row] for row, way in ((1, 2), (2, 0), (3, 1), (4, 2))}
    asked = replace(requests([1, 2, 3, 4], 30), samplings=ways, sampling_of=np.array([2, 0, 1, 2]))
    result = run(engine, asked)
    assert drawn_of(result) == drawn_of(alone)
    assert {row: item[3] for row, item in result.items()} == {row: item[3] for row, item in alone.items()}
    assert drawn_of(run(engine, requests([1]))) == drawn_of(run(engine, requests([1]))) != {1: alone[2][0][:12]}


def test_turns_on_held_rows_are_those_of_rows_that_are_computed_anew(engine: RolloutEngine) -> None:
    def second_turns(*, holds: bool) -> Rows:
        first: Rows = {}
        engine.submit(requests([1, 2, 3], [12, 15, 1]))
        while engine.load.running or engine.load.waiting:
            ended = engine.advance()
            first |= rows_of(ended)
            if holds:
                engine.hold(ended.row_ids)
        engine.release(np.array([3, 77]))
        prompts = [np.array([*PROMPT, *first[row][0], 5, 6, 7]) for row in (1, 2)]
        return run(engine, requests([1, 2], 20, prompts=prompts, turn=1))

    anew, held = second_turns(holds=False), second_turns(holds=True)
    assert drawn_of(held) == drawn_of(anew)
    for row in anew:
        np.testing.assert_allclose(held[row][1], anew[row][1], atol=1e-5)


def test_new_weights_forget_what_is_held(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    engine.submit(requests([1], 30))
    first, new = rows_of(engine.advance())[1][0], other_weights(stock)
    engine.hold(np.array([1]))
    engine.load_weights(new, 2)
    prompt = np.array([*PROMPT, *first])
    tokens, log_probs, _, _ = run(engine, requests([1], 20, prompts=[prompt], turn=1))[1]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, new, prompt, tokens), atol=1e-5)


def test_only_rows_that_ended_with_the_last_call_can_be_held(engine: RolloutEngine) -> None:
    engine.submit(requests([1, 2], [2, 40]))
    assert engine.advance().row_ids.tolist() == [1]
    for rows in ([1, 2], [7]):
        with pytest.raises(BadData, match=rf"row {rows[-1] + 1}: it is not one of those that ended with the last call"):
            engine.hold(np.array(rows))
    engine.hold(np.array([1]))


def test_rows_without_a_request_are_named(engine: RolloutEngine) -> None:
    run(engine, requests([1], 2))
    engine.submit(requests([2], 40))
    for ask in (engine.peek, engine.pause, engine.resume):
        with pytest.raises(BadData, match="row 2: it has no request in this engine"):
            ask(np.array([2, 1]))
    assert engine.load.paused == 0 and set(drain(engine)) == {2}


def test_new_weights_are_generated_with_at_once(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    """The prompt's keys are in the cache of the old ones."""
    old, new = run(engine, requests([1]))[1], other_weights(stock)
    engine.load_weights(new[::-1], 2)
    assert engine.version == 2
    tokens, log_probs, versions, _ = run(engine, requests([1]))[1]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, new, PROMPT, tokens), atol=1e-5)
    assert set(versions) == {2} and set(old[2]) == {1}
    engine.load_weights(weights_of(stock), 3)
    again = run(engine, requests([1]))[1]
    assert again[0] == old[0]
    np.testing.assert_allclose(again[1], old[1], atol=1e-5)


def test_a_tensor_is_good_until_the_next_one_is_asked_for(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    """In any order: matrices that a library keeps as one come from different places and far apart."""
    new = other_weights(stock)
    engine.load_weights(lent(new[::3] + new[1::3] + new[2::3]), 2)
    tokens, log_probs, _, _ = run(engine, requests([1]))[1]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, new, PROMPT, tokens), atol=1e-5)


def test_weights_in_finer_numbers_are_rounded(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    """Those of a trainer whose weights are finer than the job's precision come as they are."""
    new = other_weights(stock)
    engine.load_weights(lent([(name, item.double() * (1 + 2.0**-40)) for name, item in new]), 2)
    result = run(engine, requests([1]))[1]
    engine.load_weights(new, 2)
    assert run(engine, requests([1]))[1] == result


def lent(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """As they come from other processes, in memory that is used again."""
    for name, tensor in weights:
        chunk = tensor.clone()
        yield name, chunk
        chunk.fill_(torch.nan)


def test_what_runs_goes_on_with_new_weights(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    whole = run(engine, requests([1, 2], [5, 40]))
    engine.submit(requests([1, 2], [5, 40]))
    engine.advance()
    new = other_weights(stock)
    engine.load_weights(new, 2)
    tokens, log_probs, versions, _ = drain(engine)[2]
    old = versions.count(1)
    assert 0 < old < len(tokens) and versions == [1] * old + [2] * (len(tokens) - old)
    assert tokens[:old] == whole[2][0][:old]
    expected = log_probs_by(stock, new, PROMPT, tokens)
    np.testing.assert_allclose(log_probs[old:], expected[old:], atol=1e-5)
    assert np.abs(np.array(log_probs[:old]) - expected[:old]).max() > 1e-3


def test_a_tied_tensor_comes_under_any_of_its_names(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    new = other_weights(stock)
    renamed = [("lm_head.weight" if name == "model.embed_tokens.weight" else name, item) for name, item in new]
    engine.load_weights(renamed, 2)
    tokens, log_probs, _, _ = run(engine, requests([1]))[1]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, new, PROMPT, tokens), atol=1e-5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda weights: weights[:-1], "model.norm.weight of the rollout model did not come"),
        (lambda weights: [*weights, ("extra.weight", torch.ones(2))], "extra.weight of shape"),
        (lambda weights: [*weights, weights[3]], "came twice"),
        (lambda weights: [*weights[:-1], ("model.norm.weight", torch.ones(3))], r"model.norm.weight of shape \(3,\)"),
    ],
)
def test_a_policy_that_is_not_whole_generates_nothing(
    engine: RolloutEngine, stock: PreTrainedModel, damage: object, message: str
) -> None:
    new = other_weights(stock)
    with pytest.raises(InvalidJob, match=message):
        engine.load_weights(damage(new), 2)  # type: ignore[operator]
    engine.submit(requests([1]))
    with pytest.raises(AssertionError):
        engine.advance()
    engine.load_weights(new, 3)
    tokens, log_probs, versions, _ = drain(engine)[1]
    np.testing.assert_allclose(log_probs, log_probs_by(stock, new, PROMPT, tokens), atol=1e-5)
    assert set(versions) == {3}


def test_an_error_on_the_way_leaves_no_policy(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    def torn() -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights_of(stock)[:5]
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        engine.load_weights(torn(), 2)
    with pytest.raises(AssertionError):
        engine.advance()
    engine.load_weights(weights_of(stock), 2)
    assert len(run(engine, requests([1]))) == 1


def test_logits_that_are_no_numbers_are_named(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    broken = [(name, item * float("nan") if name == "model.norm.weight" else item) for name, item in weights_of(stock)]
    engine.load_weights(broken, 6)
    engine.submit(requests([41]))
    with pytest.raises(BadData, match=r"row 42.*version 6"):
        engine.advance()


def test_after_logits_that_are_no_numbers_nothing_is_lost(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    asked = requests([1, 6, 7, 8], [2, 40, 40, 40], Sampling(seed=5))
    whole = run(engine, asked)
    engine.submit(asked)
    engine.advance()
    engine.load_weights([(name, item * float("nan")) for name, item in weights_of(stock)], 6)
    for _ in range(2):
        with pytest.raises(BadData, match="version 6"):
            engine.advance()
    with pytest.raises(BadData, match="it runs already"):
        engine.submit(asked)
    aborted = rows_of(engine.abort(np.array([1, 6, 7, 8])))
    assert set(aborted) == {6, 7, 8} and any(tokens for tokens, *_ in aborted.values())
    for row, (tokens, log_probs, _, ending) in aborted.items():
        assert len(tokens) < len(whole[row][0]) and ending is Ending.ABORTED
        assert tokens == whole[row][0][: len(tokens)] and np.isfinite(log_probs).all()
    assert len(engine.advance()) == 0
    engine.load_weights(weights_of(stock), 1)
    assert {row: result[0] for row, result in run(engine, asked).items()} == {row: whole[row][0] for row in whole}


@pytest.mark.parametrize("kind", MALFORMATIONS)
def test_what_is_malformed_is_refused_and_changes_nothing(engine: RolloutEngine, kind: str) -> None:
    """Beside requests that run, in a call with good ones."""
    alone, draw = run(engine, requests([1, 2, 3], 9)), np.random.default_rng(0)
    engine.submit(requests([1, 2], 9))
    for _ in range(5):
        with pytest.raises((BadData, InvalidJob), match=MALFORMATIONS[kind].words):
            engine.submit(MALFORMATIONS[kind].spoil(requests([3, 4, 5], 9), draw))
    engine.submit(requests([3], 9))
    assert {row: result[0] for row, result in drain(engine).items()} == {row: alone[row][0] for row in alone}


@pytest.mark.parametrize("number", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_malformed_requests_change_nothing_for_good_ones(engine: RolloutEngine, number: int) -> None:
    """They come before, between and after four waves of good ones, and while those decode."""
    waves = ([0, 3, 9], [1, 2, 6, 7], [4, 5], [8, 10, 11])
    alone, draw, ended = run(engine, requests(list(range(12)), 9)), np.random.default_rng(number), dict[int, Any]()
    for wave in waves:
        for malformed in np.array_split(np.arange(number // len(waves)), 3):
            for _ in malformed:
                good = requests((100 + draw.choice(12, draw.integers(1, 4), replace=False)).tolist(), 9)
                with pytest.raises((BadData, InvalidJob)):
                    engine.submit(spoilt(good, draw))
            ended |= rows_of(engine.advance())
        engine.submit(requests(wave, 9))
    ended |= drain(engine)
    assert {row: result[0] for row, result in ended.items()} == {row: result[0] for row, result in alone.items()}


@pytest.mark.parametrize("asked", [requests([4], POSITIONS), requests([4], 1, prompts=[np.full(POSITIONS, 3)])])
def test_what_is_longer_than_the_models_positions_is_refused(engine: RolloutEngine, asked: Requests) -> None:
    with pytest.raises(InvalidJob, match=rf"row 5.*{POSITIONS}"):
        engine.submit(asked)


def test_a_row_may_fill_all_positions(engine: RolloutEngine) -> None:
    some = run(engine, requests(list(range(8)), POSITIONS - len(PROMPT)))
    assert len(some) == 8


def test_fewer_tokens_to_choose_from(engine: RolloutEngine) -> None:
    best = run(engine, requests([1], sampling=Sampling(temperature=0)))[1][0]
    for narrow in (Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)):
        assert run(engine, requests([1], sampling=narrow))[1][0] == best


def test_sleeping_changes_no_response(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    before = run(engine, requests([1]))[1]
    for _ in range(2):
        engine.sleep("Cache")
    assert run(engine, requests([1]))[1][0] == before[0]
    engine.sleep("Weights")
    engine.load_weights(weights_of(stock), 5)
    assert run(engine, requests([1]))[1][0] == before[0]


def test_the_trainers_random_numbers_are_its_own(engine: RolloutEngine) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    run(engine, requests([1, 2]))
    assert torch.equal(torch.rand(4), expected)


def test_tokens_are_drawn_as_often_as_they_are_likely(engine: RolloutEngine, stock: PreTrainedModel) -> None:
    """In 1,000 draws, a token of probability p comes 1000 p times, give or take sqrt(1000 p (1 - p)); four of those are
    missed by one in 16,000."""
    rows = run(engine, requests(list(range(1000)), 1))
    counts = np.bincount([tokens[0] for tokens, *_ in rows.values()], minlength=VOCABULARY)
    with torch.no_grad():
        likely = stock(torch.from_numpy(PROMPT)[None]).logits[0, -1].softmax(-1).numpy()
    spread = np.sqrt(1000 * likely * (1 - likely))
    assert (np.abs(counts - 1000 * likely) <= 4 * spread + 1).all()
    assert (counts > 0).sum() > 5
