"""Two copies of two ranks each, as processes of one world, beside one engine that is on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Column
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.slices import own_slices
from rljob_worker.engines.rollout.tests.subjects import CPU, END, other_weights, write_model
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.errors import EngineBroken

PAIRS = Mesh(dp=2, tp=2)
LONGEST = 64
SETTINGS = VLLMSettings("float32", max_batch_rows=4, longest_row=LONGEST)
PROMPTS = [np.arange(2, 40), np.array([5]), np.arange(40, 75)[:20]]
GREEDY, DRAWN = Sampling(temperature=0), Sampling(temperature=0.9, seed=4)


@dataclass
class Found:
    """What one rank saw."""

    greedy: list[tuple[list[int], list[float]]]
    updated: list[tuple[list[int], list[float]]]
    """After an update of the weights, drawn."""
    shared_memory: set[str]
    """Names of segments that its machine has since."""
    num_groups: int
    """Process groups that it made for the engine."""
    broke: str
    """What it answered when another rank of its copy was asked for another row."""


def rows(engine: RolloutEngine, sampling: Sampling, row_ids: list[int]) -> list[tuple[list[int], list[float]]]:
    """Two rows of each prompt."""
    result = generate(engine, PROMPTS, sampling, np.array(row_ids), 2, 20)
    tokens, log_probs = result.response_ids.to_list(), result.log_probs.to_list()
    return [(one.tolist(), other.tolist()) for one, other in zip(tokens, log_probs, strict=True)]


def rows_of_copy(copy: int) -> list[int]:
    return list(range(10 * copy, 10 * copy + 2 * len(PROMPTS)))


def one_rank(rank: int, path: str) -> Found:
    """Ranks see other amounts of free memory; copies generate as often as they like."""
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    mesh = build_meshes([PAIRS], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[PAIRS]
    start = load_start()
    from rljob_worker.engines.rollout.vllm import starting

    starting.free_memory = lambda *_: (
        (1 + rank % 2) << 18
    )  # room for half of the rows on one rank, for all on the other
    before = {item.name for item in Path("/dev/shm").iterdir()}
    made, policy, copy = count_groups(), load_policy(path, torch.float32, CPU), PAIRS.dp_rank(rank)
    read = PolicyByLayers.of_files(path, torch.float32)
    engine = start(replace(SETTINGS, tensor=2, memory_fraction=0.9), path, read, (END,), CPU, None, mesh)
    greedy = [rows(engine, GREEDY, rows_of_copy(copy)) for _ in range(1 + copy)][-1]
    slices = WeightSlices.of(parse_shape(policy.config.to_dict()), 2)
    engine.load_weights(own_slices(other_weights(policy), slices, rank % 2), 2)
    updated, left = rows(engine, DRAWN, rows_of_copy(copy)), {item.name for item in Path("/dev/shm").iterdir()} - before
    return Found(greedy, updated, left, len(made), broken(engine, rank))


def count_groups() -> list[object]:
    """Grows with every process group that is made from here on."""
    made, new_group = list[object](), dist.new_group

    def noted(*arguments: object, **options: object) -> object:
        made.append(new_group(*arguments, **options))
        if made[-1] is None:  # of others
            return made.pop()
        return made[-1]

    dist.new_group = noted
    return made


def broken(engine: RolloutEngine, rank: int) -> str:
    engine.submit(
        Requests(
            row_ids=np.array([rank]),
            turns=np.array([0]),
            prompts=Column.ragged([PROMPTS[0]]),
            prompt_of=np.array([0]),
            max_tokens=np.array([8]),
            samplings=(DRAWN,),
        )
    )
    with pytest.raises(EngineBroken) as error:
        engine.advance()
    return str(error.value)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ranks(path: str, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    load_start()  # sets what vLLM reads of the environment, which ranks inherit
    preload = ("rljob_worker.engines.rollout.vllm.starting",)
    directory = tmp_path_factory.mktemp("ranks")
    return run_fresh_ranks(
        PAIRS.size, one_rank, directory, path, preload=preload, deadline_seconds=7 * TEST_TIMEOUT_SECONDS
    )


def test_two_ranks_generate_what_one_does(path: str, ranks: list[Found]) -> None:
    policy = load_policy(path, torch.float32, CPU)
    alone = load_start()(SETTINGS, path, PolicyByLayers.of_files(path, torch.float32), (END,), CPU)
    greedy = [rows(alone, GREEDY, rows_of_copy(copy)) for copy in range(PAIRS.dp)]
    alone.load_weights(other_weights(policy), 2)
    updated = [rows(alone, DRAWN, rows_of_copy(copy)) for copy in range(PAIRS.dp)]
    alone.close()
    for rank, result in enumerate(ranks):
        for seen, expected in ((result.greedy, greedy), (result.updated, updated)):
            for (tokens, log_probs), (wanted, probable) in zip(seen, expected[PAIRS.dp_rank(rank)], strict=True):
                assert tokens == wanted
                np.testing.assert_allclose(log_probs, probable, atol=1e-5)
    assert ranks[0].greedy[0] != ranks[0].updated[0] and ranks[0].updated != ranks[2].updated


def test_the_ranks_of_a_copy_see_the_same(ranks: list[Found]) -> None:
    assert ranks[0].updated == ranks[1].updated and ranks[2].updated == ranks[3].updated


def test_ranks_that_go_different_ways_end_instead_of_waiting_for_each_other(ranks: list[Found]) -> None:
    assert all("ranks of one copy sampled different tokens under policy version 2" in rank.broke for rank in ranks)


def test_nothing_that_ranks_share_has_a_name_that_outlives_them(ranks: list[Found]) -> None:
    names = set().union(*(rank.shared_memory for rank in ranks))
    assert not [name for name in names if "cpushm" in name or name.startswith("psm_")]


def test_a_rank_makes_no_groups_for_others(ranks: list[Found]) -> None:
    """Two each, of a device and of the CPU: the world, those that share layers, and four of a rank alone."""
    assert [rank.num_groups for rank in ranks] == [12] * 4
