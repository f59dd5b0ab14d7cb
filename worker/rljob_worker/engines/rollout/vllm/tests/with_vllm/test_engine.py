"""What the engine does with a library that is scripted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Column
from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.rollout.limits import Limits
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import BadData, EngineBroken, InvalidJob

load_start()

from vllm.logprobs import FlatLogprobs  # noqa: E402

from rljob_worker.engines.rollout.vllm.engine import VLLMRollout  # noqa: E402


class Library:
    """As much of vLLM's engine as is called, noting what was."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.refuses = ""
        self.outputs: list[Any] = []
        self.output_processor = SimpleNamespace(request_states={})
        self.model_executor = SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"))

    def add_request(self, name: str, prompt: Any, params: Any) -> str:
        if name == self.refuses:
            raise ValueError("no such prompt")
        self.calls.append(("add", name))
        return f"{name}-of-the-library"

    def abort_request(self, names: list[str]) -> None:
        self.calls.append(("abort", *names))

    def step(self) -> list[Any]:
        if not self.outputs:
            raise RuntimeError("illegal instruction")
        return self.outputs.pop(0)

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self, parts: list[str]) -> None:
        self.calls.append(("wake", *parts))

    def collective_rpc(self, method: Any, kwargs: dict[str, Iterable[Any]] | None = None) -> None:
        self.calls.append((method, len(list(kwargs["weights_iterator"]))) if kwargs else method.__name__)

    def apply_model(self, change: Callable[[Any], Any]) -> list[Any]:
        self.calls.append("apply")
        return [change(torch.nn.Module())]

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        self.calls.append(("reset", reset_running_requests))
        return True


def built(*, can_sleep: bool = True) -> tuple[VLLMRollout, Library]:
    library, parameters, vocabulary = Library(), {"a": torch.empty(2, device="meta")}, Vocabulary((b"yes", b"no"), {})
    limits = Limits(96, 16, ROLLOUT_ENGINES["VLLM"].temperatures, gives_top_log_probs=True)
    mesh = alone(torch.device("cpu"))
    return VLLMRollout(library, parameters, (1,), limits, vocabulary, mesh=mesh, can_sleep=can_sleep), library


def one(temperature: float = 1.0, stop: tuple[str, ...] = (), rows: tuple[int, ...] = (3,)) -> Requests:
    return Requests(
        row_ids=np.array(rows),
        turns=np.zeros(len(rows), np.int64),
        prompts=Column.ragged([[5, 6]]),
        prompt_of=np.zeros(len(rows), np.int64),
        max_tokens=np.full(len(rows), 4),
        samplings=(Sampling(temperature=temperature, stop=stop),),
    )


def output(name: str, tokens: list[int], log_probs: list[float], *, finished: bool) -> SimpleNamespace:
    """What the library has of a request after a step."""
    completion = SimpleNamespace(token_ids=tokens, logprobs=SimpleNamespace(logprobs=log_probs))
    return SimpleNamespace(request_id=name, outputs=[completion], finished=finished)


def test_likely_tokens_are_taken_from_behind_the_drawn_ones() -> None:
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    asked = one()
    engine.submit(replace(asked, samplings=(replace(asked.samplings[0], top_log_probs=2),)))
    flat = FlatLogprobs()
    for entry in ([(5, -0.5), (5, -0.5), (6, -1.0)], [(1, -2.0), (7, -0.25), (1, -2.0)]):
        flat.append_fast([t for t, _ in entry], [v for _, v in entry], chain([1], [1, 2]), repeat(None))
    done = output("3", [5, 1], [], finished=True)
    done.outputs[0].logprobs = flat
    library.outputs = [[done]]
    ended = engine.advance()
    assert ended.log_probs.to_list()[0].tolist() == [-0.5, -2.0]
    assert ended.top_log_probs[3].tokens.tolist() == [[5, 6], [7, 1]]
    assert ended.top_log_probs[3].log_probs.tolist() == [[-0.5, -1.0], [-0.25, -2.0]]


def test_a_library_that_breaks_ends_the_worker_so_that_it_is_started_again() -> None:
    engine, _ = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    engine.submit(one())
    with pytest.raises(EngineBroken, match="RuntimeError: illegal instruction") as error:
        engine.advance()
    assert error.value.exit_code is ExitCode.RETRY
    with pytest.raises(AssertionError, match="it broke with RuntimeError"):
        engine.advance()


def test_the_cache_is_dropped_with_every_policy() -> None:
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    assert library.calls == ["apply", "apply", ("reload_weights", 1), "apply", ("reset", True)]


def test_sleep_is_as_deep_as_it_is_asked_for() -> None:
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    library.calls.clear()
    engine.sleep("Cache")
    engine.sleep("Weights")
    engine.load_weights([("a", torch.ones(2))], 2)
    assert library.calls[:5] == [("sleep", 1), ("sleep", 2), ("wake", "weights"), "apply", ("reload_weights", 1)]


def test_new_weights_do_not_wake_the_cache() -> None:
    """What trains may still be awake; the cache comes back where something is generated, and once."""
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    engine.sleep("Cache")
    for wake in (partial(engine.load_weights, [("a", torch.ones(2))], 2), engine.advance, engine.advance):
        wake()
    assert [call for call in library.calls if call[0] == "wake"] == [("wake", "weights"), ("wake", "kv_cache")]


def test_what_is_awake_is_held() -> None:
    """8 bytes of weights; a cache of 3 blocks of 4 tokens, each two layers of two heads of 8 numbers, twice."""
    engine, library = built()
    attention = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    attention.get_text_config = lambda: attention
    library.vllm_config = SimpleNamespace(
        cache_config=SimpleNamespace(num_gpu_blocks=3, block_size=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(dtype=torch.float32, hf_config=attention),
    )
    held = [engine.held_bytes("Cache")]
    engine.sleep("Cache")
    held.append(engine.held_bytes("Cache"))
    engine.load_weights([("a", torch.ones(2))], 1)
    held.append(engine.held_bytes("Weights"))
    engine.advance()
    held.append(engine.held_bytes("Weights"))
    assert held == [12 * 256 + 8, 0, 8, 12 * 256 + 8]


def test_weights_that_were_dropped_generate_nothing() -> None:
    engine, _ = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    engine.sleep("Weights")
    with pytest.raises(AssertionError, match="dropped by sleep"):
        engine.advance()


def test_where_the_library_cannot_sleep_it_is_not_asked_to() -> None:
    engine, library = built(can_sleep=False)
    engine.load_weights([("a", torch.ones(2))], 1)
    library.calls.clear()
    engine.sleep("Cache")
    engine.advance()
    assert library.calls == []


@pytest.mark.parametrize("temperature", [0.009, 3.0])
def test_sampling_that_the_library_does_not_have_is_named(temperature: float) -> None:
    engine, library = built()
    with pytest.raises(InvalidJob, match=rf"row 4: temperature {temperature}: the engine samples at 0 and from 0.01"):
        engine.submit(one(temperature=temperature))
    assert library.calls == []


def test_requests_beside_one_that_the_library_refuses_are_taken_back() -> None:
    engine, library = built()
    library.refuses = "5"
    with pytest.raises(InvalidJob, match="row 6: vLLM refuses the request: no such prompt"):
        engine.submit(one(rows=(3, 4, 5, 6)))
    assert library.calls == [("add", "3"), ("add", "4"), ("abort", "3", "4")]
    engine.submit(one(rows=(3, 4)))
    assert library.calls[3:] == [("add", "3"), ("add", "4")]


def test_what_ended_in_the_step_of_bad_data_is_given_first_and_the_spoilt_row_can_be_aborted() -> None:
    """Rows 3 and 5 end with token 1 in the step in which row 4, which has ended for the library too, is spoilt."""
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 7)
    engine.submit(one(rows=(3, 4, 5)))
    library.outputs.append(
        [
            output("3", [8, 1], [-1.0, -2.0], finished=True),
            output("4", [9, 8, 1], [-0.5, float("nan"), -1.0], finished=True),
            output("5", [1], [-3.0], finished=True),
        ]
    )
    assert engine.advance().row_ids.tolist() == [3, 5]
    for _ in range(2):
        with pytest.raises(BadData, match="row 5: the logits of policy version 7 are not finite after 1 tokens"):
            engine.advance()
    library.calls.clear()
    ended = engine.abort(np.array([4]))
    assert ended.row_ids.tolist() == [4] and ended.response_ids.values.tolist() == [9]
    assert library.calls == [("abort",)]
    assert not len(engine.advance())
    engine.submit(one(rows=(4,)))
    library.outputs += [[output("4", [1], [-3.0], finished=True)]]
    assert len(engine.advance()) == 1
    assert library.calls[1:] == [("add", "4"), ("reset", True), "zero_cache"]


def test_a_stop_text_that_cannot_be_is_refused_before_the_library_has_a_request() -> None:
    engine, library = built()
    with pytest.raises(InvalidJob, match="maybe"):
        engine.submit(one(stop=("maybe",)))
    assert library.calls == []


def test_it_is_closed_once() -> None:
    engine, library = built()
    engine.close()
    engine.close()
    assert library.calls == ["shutdown"]
