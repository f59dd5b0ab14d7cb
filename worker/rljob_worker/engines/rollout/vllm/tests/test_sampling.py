"""What vLLM's sampler gets."""

from dataclasses import replace

import numpy as np
import torch

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import PartialResponses, Requests, Sampling
from rljob_worker.engines.rollout.responses import responses_of
from rljob_worker.engines.rollout.sampling import sample
from rljob_worker.engines.rollout.vllm.sampling import DrawnRows, arguments_of
from rljob_worker.random_bits import random_streams

WARM = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3, stop_token_ids=(9, 2))
FREE = Sampling(seed=4)


def asked(**more: object) -> Requests:
    """Rows 4, 5 and 6, drawn WARM, FREE and WARM."""
    return Requests(
        row_ids=np.array([4, 5, 6]),
        turns=np.array([0, 1, 0]),
        prompts=Column.ragged([[5, 6]]),
        prompt_of=np.zeros(3, np.int64),
        max_tokens=np.array([10, 20, 30]),
        samplings=(WARM, FREE),
        sampling_of=np.array([0, 1, 0]),
        **more,  # type: ignore[arg-type]
    )


def request_arguments(requests: Requests) -> list[dict]:
    return [arguments_of(response, (2, 0)) for response in responses_of(requests, [None, None])]


def test_what_ends_a_response_is_passed_on_and_the_library_cuts_nothing_off() -> None:
    first, second, _ = request_arguments(asked())
    assert (first["temperature"], second["temperature"]) == (0.7, 1.0)
    assert (first["max_tokens"], second["max_tokens"]) == (10, 20)
    assert first["stop_token_ids"] == [0, 2, 9] and second["stop_token_ids"] == [0, 2] and first["ignore_eos"]
    assert not {"top_p", "top_k", "min_p", "seed"} & set(first)


def test_a_response_that_has_tokens_gets_the_rest() -> None:
    """Row 4 goes on at draw 1, row 5 of turn 1 with a token at 7, and row 6 begins."""
    begun = PartialResponses(
        Column.ragged([[8], [7], []]),
        Column.ragged([[-1.0], [-2.0], []], "float32"),
        Column.ragged([[3], [4], []]),
    )
    requests = asked(begun=begun, next_draws=np.array([1, 7, 0]))
    assert [request_argument["max_tokens"] for request_argument in request_arguments(requests)] == [9, 19, 30]
    rows = DrawnRows.of(request_argument["extra_args"] for request_argument in request_arguments(requests))
    assert rows.first_draws.tolist() == [1, (1 << 32) + 7, 0]
    responses = responses_of(requests, [None, None])
    assert [response.sequence() for response in responses] == [[5, 6, 8], [5, 6, 7], [5, 6]]
    assert (responses[1].log_probs, responses[1].versions) == ([-2.0], [4])
    # after three more tokens its next draw is three further on
    responses[1].add([1, 1, 1], [0.0] * 3, 5)
    again = DrawnRows.of([arguments_of(responses[1], ())["extra_args"]])
    assert again.first_draws.tolist() == [(1 << 32) + 10]


def test_every_row_is_drawn_as_the_other_engine_draws_it() -> None:
    rows = DrawnRows.of(request_argument["extra_args"] for request_argument in request_arguments(asked()))
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    tokens, log_probs = rows.sample(logits, np.array([2, 0, 5]))
    for at, (row_id, way, draw) in enumerate([(4, WARM, 2), (5, FREE, 1 << 32), (6, WARM, 5)]):
        stream = random_streams(way.seed, np.array([row_id]))
        token, log_prob = sample(logits[[at]], way, stream, np.array([draw]))
        assert (tokens[at], log_probs[at]) == (token[0], log_prob[0])


def test_likely_tokens_are_asked_for_beside_the_drawn_one_and_of_the_rows_that_ask_alone() -> None:
    requests = replace(asked(), samplings=(replace(WARM, top_log_probs=3), FREE))
    arguments = request_arguments(requests)
    assert [argument["logprobs"] for argument in arguments] == [3, 0, 3]
    rows = DrawnRows.of(argument["extra_args"] for argument in arguments)
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    assert all(map(torch.equal, rows.sample(logits, np.zeros(3, int)), plain_rows().sample(logits, np.zeros(3, int))))
    found = rows.top(logits)
    assert found is not None and plain_rows().top(logits) is None
    tokens, log_probs = found
    expected = torch.log_softmax(logits / 0.7, -1).topk(3)
    assert torch.equal(tokens[[0, 2]], expected.indices[[0, 2]])
    torch.testing.assert_close(log_probs[[0, 2]], expected.values[[0, 2]])
    assert rows.repeated(np.array([2, 1, 1])).num_top.tolist() == [3, 3, 0, 3]


def plain_rows() -> DrawnRows:
    return DrawnRows.of(argument["extra_args"] for argument in request_arguments(asked()))


def test_rows_are_repeated_for_what_was_guessed_of_them() -> None:
    rows = DrawnRows.of(request_argument["extra_args"] for request_argument in request_arguments(asked())).repeated(
        np.array([2, 1, 3])
    )
    assert rows.way_of.tolist() == [0, 0, 1, 0, 0, 0]
    assert rows.first_draws.tolist() == [0, 0, 1 << 32, 0, 0, 0]
    assert len(set(rows.streams.tolist())) == 3 and rows.streams[0] == rows.streams[1]
