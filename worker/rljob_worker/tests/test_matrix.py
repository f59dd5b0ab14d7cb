"""Whole jobs, run in every way: each step is what one worker learns that does everything, however the step before was
run.

The engine is the environment's: VLLM in that of `make vllm`, else Transformers. `make test-slow` runs every two choices
together, and so every choice, `make matrix` all, with either engine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise as neighbours
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, Qwen3Config, Qwen3MoeConfig

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.built_once import build_once
from rljob_worker.engines.models import random_policy
from rljob_worker.tests.jobs import Run, run_job
from rljob_worker.tests.matrix import (
    ENGINE,
    PRECISIONS,
    Case,
    all_cases,
    chains,
    job_of,
    pairs,
    pairwise,
)
from rljob_worker.tests.metrics import assert_learnt_the_same

LONGEST = 4
"""Steps of a job, each of which another case runs."""
CLOSE = {"Transformers": 1e-9, "VLLM": 1e-3}
"""Relative. Ranks and micro-batches add the same numbers in another order. In float64 that changes the 16th digit, and
after two steps of training the 14th; in float32, where it changes the 7th, a loss near 0 agrees in three."""


FULL = os.environ.get("RLJOB_MATRIX") == "full"
CHOSEN = all_cases(ENGINE) if FULL else pairwise(all_cases(ENGINE))
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}


@pytest.fixture(scope="module")
def small(tiny: Path, session_folder: Path) -> Path:
    """The tiny model's tokenizer and data, and models that four workers can share in any way. Two of those that split
    matrices have one key head each, which goes round where two share sequences as well."""

    def build(folder: Path) -> None:
        for name in ("dense", "experts"):
            shutil.copytree(tiny, folder / name)
        dense, experts = (folder / name / "model" for name in ("dense", "experts"))
        config = AutoConfig.from_pretrained(dense, **SIZES, tie_word_embeddings=True)
        for model, item in ((dense, config), (experts, with_experts(config))):
            item.save_pretrained(model)
            random_policy(str(model), torch.float32, 0).save_pretrained(model)

    return build_once(session_folder / "small", build)


def with_experts(config: Qwen3Config) -> Qwen3MoeConfig:
    kept = ("vocab_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    tokens = ("pad_token_id", "bos_token_id", "eos_token_id")
    same = {name: getattr(config, name) for name in (*kept, *tokens)}
    return Qwen3MoeConfig(**SIZES, **EXPERTS, **same, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def ran() -> list[Case]:
    """What this process has run."""
    return []


def finished(case: Case, small: Path, folder: Path, num_steps: int) -> Run:
    run = run_job(job_of(case, ENGINE, small, num_steps), folder, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
    assert run.code == 0, f"{case}: {run.output}{run.logs}"
    return run


def named(chain: tuple[Case, ...]) -> str:
    return "-".join((*chain[0].job, "together" if chain[0].together else "apart"))


@pytest.mark.slow
@pytest.mark.parametrize("chain", chains(CHOSEN, LONGEST), ids=named)
def test_every_way_of_running_a_job_learns_the_same(
    small: Path,
    finished_run: Callable[..., Run],
    ran: list[Case],
    tmp_path: Path,
    chain: tuple[Case, ...],
) -> None:
    # the second step shows what the first one taught
    first = 1 if len(chain) > 1 else 2
    # many chains share a run that is as long as the longest needs
    one = finished_run(job_of(chain[0].alone, ENGINE, small, LONGEST))
    for num_steps, case in enumerate(chain, start=first):
        run = finished(case, small, tmp_path, num_steps)
        assert len(run.metrics) == num_steps + 1, case
        assert_learnt_the_same(run, one, CLOSE[ENGINE])
        ran.append(case)


if FULL:  # in one process, and after all of them

    def test_every_case_has_run(ran: list[Case]) -> None:
        assert [case for case in CHOSEN if case not in ran] == []
        assert len(set(ran)) == NUM_CASES[ENGINE]


NUM_CASES = {
    # 7 ways to put data, context and tensor on up to 4 workers; once without experts, once with, and on all but one
    # worker with experts that two share: 20 with FSDP, and with Megatron, where 4 of the ways have two stages besides,
    # 3 of them with two workers to a stage that share experts; of 3 algorithms over 3 transports, except 6 on one
    # worker with FSDP
    "Transformers": (20 + 20 + 4 + 4 + 3) * 3 * 3 - 6,
    # the same 51 ways for one worker that generates and for two: apart over 2 transports, together for two on all but
    # the 4 of one worker, which are two libraries without experts and with
    "VLLM": (2 * 2 * 51 + 51 + 47) * 3 - 6,
}


@pytest.mark.parametrize("engine", sorted(PRECISIONS))
def test_no_case_is_left_out(engine: str) -> None:
    assert len(set(all_cases(engine))) == len(all_cases(engine)) == NUM_CASES[engine]


any_cases = st.one_of(*(st.lists(st.sampled_from(all_cases(engine))) for engine in PRECISIONS))


@given(cases=any_cases)
def test_all_pairs_of_any_cases_are_in_those_that_are_chosen(cases: list[Case]) -> None:
    few = pairwise(cases)
    assert set(few) <= set(cases) and len(set(few)) == len(few)
    assert set().union(*map(pairs, few)) == set().union(*map(pairs, cases))


@pytest.mark.parametrize("engine", sorted(PRECISIONS))
def test_few_cases_are_chosen(engine: str) -> None:
    every = all_cases(engine)
    assert len(pairwise(every)) <= len(every) // 6


def test_jobs_go_on_in_smaller_and_in_larger_layouts() -> None:
    result = chains(all_cases("Transformers"), LONGEST)
    moves = [(asdict(one), asdict(other)) for chain in result for one, other in neighbours(chain)]
    for way in ("data", "context", "tensor", "pipeline", "expert"):
        assert {(1, 2), (2, 1)} <= {(one[way], other[way]) for one, other in moves}, way


@pytest.mark.parametrize("engine", sorted(PRECISIONS))
def test_chains_have_every_case_once_and_one_job_and_placement_each(engine: str) -> None:
    every = all_cases(engine)
    result = chains(every, LONGEST)
    assert sorted(map(str, every)) == sorted(str(case) for chain in result for case in chain)
    assert {len(chain) for chain in result} <= set(range(1, LONGEST + 1))
    assert all(len({(case.alone, case.library, case.together) for case in chain}) == 1 for chain in result)
