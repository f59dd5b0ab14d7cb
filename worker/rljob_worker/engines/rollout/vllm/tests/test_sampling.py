"""What vLLM's sampler is told."""

import numpy as np
import pytest

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.vllm.sampling import sampling_of
from rljob_worker.random_bits import random_bits


def told(sampling: Sampling, row_ids: list[int], turns: list[int], max_tokens: list[int]) -> list[dict[str, object]]:
    asked = Requests(
        row_ids=np.array(row_ids, np.int64),
        turns=np.array(turns, np.int64),
        prompts=Column.ragged([[5, 6]]),
        prompt_of=np.zeros(len(row_ids), np.int64),
        max_tokens=np.array(max_tokens, np.int64),
        sampling=sampling,
    )
    return list(sampling_of(asked, (2, 0)))


def test_everything_that_decides_a_token_is_passed_on() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3, stop_token_ids=(9, 2))
    first, second = told(sampling, [4, 5], [0, 1], [10, 20])
    assert {name: first[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
    }
    assert (first["max_tokens"], second["max_tokens"]) == (10, 20)
    assert first["stop_token_ids"] == [0, 2, 9] and first["ignore_eos"]


def test_seeds_have_63_bits_and_belong_to_seed_row_and_turn() -> None:
    seeds = {
        found["seed"]
        for seed in (0, 1)
        for found in told(Sampling(seed=seed), [0, 0, 1, 2**40], [0, 1, 0, 0], [1, 1, 1, 1])
    }
    assert len(seeds) == 8 and all(isinstance(seed, int) and 0 <= seed < 2**63 for seed in seeds)
    (expected,) = random_bits(1, np.array([0]), np.array([1])).tolist()
    assert expected // 2 in seeds


@pytest.mark.parametrize("count", [0, 3])
def test_there_is_one_for_each_request(count: int) -> None:
    assert len(told(Sampling(), list(range(count)), [0] * count, [1] * count)) == count
