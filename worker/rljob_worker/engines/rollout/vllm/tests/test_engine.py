"""What the engine does with a library that does as it is told here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.batch import Column
from rljob_worker.engines.mesh import alone
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import EngineBroken, InvalidJob

load_start()

from rljob_worker.engines.rollout.vllm.engine import VLLMRollout  # noqa: E402


class Library:
    """As much of vLLM's engine as is called, noting what was."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=16))
        self.model_executor = SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"))

    def add_request(self, name: str, prompt: Any, params: Any) -> str:
        self.calls.append(("add", name))
        return f"{name}-of-the-library"

    def step(self) -> list[Any]:
        raise RuntimeError("illegal instruction")

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self) -> None:
        self.calls.append("wake")

    def collective_rpc(self, method: str, kwargs: dict[str, Iterable[Any]]) -> None:
        self.calls.append((method, len(list(kwargs["weights_iterator"]))))

    def apply_model(self, change: Callable[[Any], None]) -> None:
        self.calls.append("apply")

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        self.calls.append(("reset", reset_running_requests))
        return True


def built(*, can_sleep: bool = True) -> tuple[VLLMRollout, Library]:
    library, parameters, vocabulary = Library(), {"a": torch.empty(2, device="meta")}, Vocabulary((b"yes", b"no"), {})
    mesh = alone(torch.device("cpu"))
    return VLLMRollout(library, parameters, (1,), vocabulary, mesh=mesh, can_sleep=can_sleep), library


def one(temperature: float = 1.0, stop: tuple[str, ...] = ()) -> Requests:
    return Requests(
        row_ids=np.array([3]),
        turns=np.array([0]),
        prompts=Column.ragged([[5, 6]]),
        prompt_of=np.array([0]),
        max_tokens=np.array([4]),
        sampling=Sampling(temperature=temperature, stop=stop),
    )


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
    assert library.calls == ["apply", ("reload_weights", 1), "apply", ("reset", True)]


def test_sleep_is_as_deep_as_it_is_asked_for() -> None:
    engine, library = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    library.calls.clear()
    engine.sleep("Cache")
    engine.sleep("Weights")
    engine.load_weights([("a", torch.ones(2))], 2)
    assert library.calls[:5] == [("sleep", 1), ("sleep", 2), "wake", "apply", ("reload_weights", 1)]
    engine.wake()
    assert library.calls.count("wake") == 1


def test_weights_that_were_dropped_generate_nothing() -> None:
    engine, _ = built()
    engine.load_weights([("a", torch.ones(2))], 1)
    engine.sleep("Weights")
    with pytest.raises(AssertionError, match="dropped by sleep"):
        engine.advance()


def test_where_the_library_cannot_sleep_it_is_not_asked_to() -> None:
    engine, library = built(can_sleep=False)
    engine.sleep("Cache")
    engine.wake()
    assert library.calls == []


def test_sampling_that_the_library_refuses_is_named() -> None:
    engine, _ = built()
    with pytest.raises(InvalidJob, match=r"row 4: vLLM does not sample so: temperature must be in \[0, 2\]"):
        engine.submit(one(temperature=3.0))


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
