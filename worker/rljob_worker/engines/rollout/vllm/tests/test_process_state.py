"""What starting vLLM may not change in the process."""

import os
import random

import numpy as np
import pytest
import torch

from rljob_worker.engines.rollout.vllm.process_state import preserved_process_state


def test_random_numbers_go_on_as_if_nothing_had_been_seeded() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed(number: int) -> None:
        random.seed(number), np.random.seed(number), torch.manual_seed(number)

    seed(5)
    expected = draw()
    seed(5)
    with preserved_process_state({}):
        seed(0)
    assert draw() == expected


def test_variables_are_as_before_except_the_librarys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "mine")
    monkeypatch.setenv("RLJOB_GONE", "still here")
    monkeypatch.setenv("VLLM_OF_IT", "before")
    with preserved_process_state({"RANK": "3"}):
        assert os.environ["RANK"] == "3"
        os.environ["LD_PRELOAD"] = "its"
        os.environ["NUMEXPR_ITS"] = "4"
        os.environ["VLLM_OF_IT"] = "after"
        del os.environ["RLJOB_GONE"]
    assert os.environ["LD_PRELOAD"] == "mine" and os.environ["RLJOB_GONE"] == "still here"
    assert "RANK" not in os.environ and "NUMEXPR_ITS" not in os.environ
    assert os.environ["VLLM_OF_IT"] == "after"


def test_threads_can_still_be_set() -> None:
    ours = torch.set_num_threads
    with pytest.raises(ZeroDivisionError), preserved_process_state({}):
        torch.set_num_threads = print
        raise ZeroDivisionError
    assert torch.set_num_threads is ours
