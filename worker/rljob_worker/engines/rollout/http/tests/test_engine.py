"""Requests to servers with the published routes; the contract of every engine is in rollout/tests/test_contract.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.http.connection import ServerConnection
from rljob_worker.engines.rollout.requests import Ending, Requests, Sampling
from rljob_worker.engines.rollout.tests.subjects import ServedRollout, http_engine, weights_of, write_model
from rljob_worker.errors import EngineBroken, InvalidJob

PROMPT = np.arange(2, 20)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["SGLang", "VLLM"])
def engine(request: pytest.FixtureRequest, path: str) -> Iterator[ServedRollout]:
    """At version 3 of the weights of its files, eight tokens a call."""
    built = http_engine(path, tokens_per_call=8, routes=request.param)
    built.load_weights(weights_of(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)), 3)
    yield built
    built.close()


def requests(rows: list[int], sampling: Sampling | None = None) -> Requests:
    return Requests(
        np.array(rows),
        np.zeros(len(rows), np.int64),
        Column.ragged([PROMPT]),
        np.zeros(len(rows), np.int64),
        np.full(len(rows), 20),
        (sampling or Sampling(seed=3),),
    )


def sampled(engine: ServedRollout, rows: list[int]) -> dict[int, tuple[list[int], list[float], Ending]]:
    engine.submit(requests(rows))
    result = {}
    while len(ended := engine.advance()):
        for at, row in enumerate(ended.row_ids.tolist()):
            assert set(ended.token_versions.row(at).tolist()) == {3}
            tokens, log_probs = ended.response_ids.row(at).tolist(), ended.log_probs.row(at).tolist()
            result[row] = (tokens, log_probs, Ending(ended.endings[at]))
    return result


def test_log_probs_are_those_of_the_weights_that_were_sent(engine: ServedRollout, path: str) -> None:
    """The server began with others."""
    other = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    engine.load_weights(weights_of(other), 3)
    rows = sampled(engine, [4, 5, 6])
    assert len(rows) == 3 and len({tuple(tokens) for tokens, *_ in rows.values()}) == 3
    for tokens, log_probs, _ in rows.values():
        with torch.no_grad():
            logits = other(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-5)


def test_the_same_rows_come_again_the_same(engine: ServedRollout) -> None:
    assert {row: item[0] for row, item in sampled(engine, [1, 2]).items()} == {
        row: item[0] for row, item in sampled(engine, [2, 1]).items()
    }


def test_a_response_is_asked_for_in_calls_of_so_many_tokens(engine: ServedRollout) -> None:
    tokens, *_ = sampled(engine, [1])[1]
    asked = [body for path, body in engine.server.calls if "generate" in path]
    assert [len(body.get("input_ids") or body["token_ids"]) for body in asked] == [18, 26, 34][: len(asked)]
    assert len(asked) == -(-len(tokens) // 8) > 1
    # SGLang draws by place in the row, vLLM by place in the call
    sampling = [body["sampling_params"] for body in asked]
    seeds = [params.get("sampling_seed", params.get("seed")) for params in sampling]
    assert len(set(seeds)) == (1 if "sampling_seed" in sampling[0] else len(asked))


def test_the_folder_of_weights_is_gone_once_they_were_taken(engine: ServedRollout) -> None:
    loads = [body for path, body in engine.server.calls if path in ("/update_weights_from_disk", "/collective_rpc")]
    (folder,) = {body.get("model_path") or body["kwargs"]["weights_path"] for body in loads}
    assert folder.endswith("/version-3") and not Path(folder).parent.exists()


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        ((400, "too long"), InvalidJob, "row 8: .*answers 400: too long"),
        ((401, "no"), InvalidJob, "RLJOB_ROLLOUT_SERVER_TOKEN"),
        ((500, "out of memory"), EngineBroken, "answers 500: out of memory"),
        ((200, "<html>"), EngineBroken, "not JSON"),
        ((200, "{}"), EngineBroken, "row 8: .*rollout.server.routes"),
    ],
)
def test_what_a_server_refuses_or_spoils_has_its_words(
    engine: ServedRollout, refusal: tuple[int, str], error: type[Exception], words: str
) -> None:
    engine.submit(requests([7]))
    engine.server.refusal = refusal
    with pytest.raises(error, match=words):
        engine.advance()


def test_a_server_that_was_started_anew_is_found_out(engine: ServedRollout) -> None:
    engine.server.version = "default"
    engine.submit(requests([7]))
    with pytest.raises(EngineBroken, match="row 8: .*weights default, and was given version 3"):
        engine.advance()


def test_weights_that_a_server_does_not_take_leave_no_policy(engine: ServedRollout, path: str) -> None:
    engine.server.model = torch.nn.Linear(1, 1)
    with pytest.raises((EngineBroken, InvalidJob), match="weightsDirectory|answers 500"):
        engine.load_weights(weights_of(AutoModelForCausalLM.from_pretrained(path)), 4)
    with pytest.raises(AssertionError, match="has not come whole"):
        engine.advance()


def test_an_end_that_the_model_does_not_know_is_refused(engine: ServedRollout) -> None:
    is_sglang = any("disk" in path for path, _ in engine.server.calls)
    engine.server.spoil = {"finish_reason": {"type": "stop"} if is_sglang else "stop"}
    engine.submit(requests([7], Sampling(temperature=0)))
    with pytest.raises(InvalidJob, match="row 8: .*generation_config.json"):
        engine.advance(1)


def test_a_server_that_is_not_there_is_named() -> None:
    connection = ServerConnection("http://127.0.0.1:1", None, 5)
    with pytest.raises(EngineBroken, match="http://127.0.0.1:1/health"):
        connection.require_healthy("/health", 0)
    connection.close()


def test_an_exception_of_a_library_answers_the_call_that_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(*_: object, **options: object) -> None:
        raise LookupError("unknown encoding: x-none")

    connection = ServerConnection("http://127.0.0.1:1", None, 5.0)
    monkeypatch.setattr(aiohttp.ClientSession, "request", request)
    connection.start(7, "/generate", {})
    ((number, error),) = connection.finished()
    connection.close()
    assert number == 7 and isinstance(error, EngineBroken) and "/generate: LookupError: unknown" in str(error)
