"""Generation: our VLLM engine against vLLM's own `LLM.generate`, the same weights, prompts, lengths and sampling.

`generation.py` calls it. Two cases. `equal`: every response is as long as allowed. `ragged`: response lengths are
log-normal, each row's own `max_tokens`. No token ends a row. Both drive an engine with the same settings, in turn, so
that a busy machine slows both; the median of each is compared, and that of our Transformers engine with the same rows
stands beside them. Both of our engines run a second time in calls of `advance(8)`, which return every eight steps.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from rljob_worker.batch import Column
from rljob_worker.engines.models import load_policy, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.responses import responses_of
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.sampling import arguments_of
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings, engine_arguments

VOCABULARY, GROUP_SIZE, PROMPT_TOKENS = 64, 8, 12
CPU = torch.device("cpu")
STEPS = 8
"""Of a bounded call of `advance`."""


def write_model(directory: str) -> None:
    """0.8 M parameters."""
    Qwen3Config(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(directory)
    random_policy(directory, torch.float32, seed=0).save_pretrained(directory)


def asked_for(lengths: np.ndarray) -> Requests:
    rows = np.arange(len(lengths))
    draw = np.random.default_rng(0)
    prompts = [draw.integers(2, VOCABULARY, PROMPT_TOKENS) for _ in range(len(lengths) // GROUP_SIZE)]
    return Requests(rows, np.zeros_like(rows), Column.ragged(prompts), rows // GROUP_SIZE, lengths, (Sampling(),))


def through(engine: RolloutEngine, requests: Requests, most_steps: int | None = None) -> int:
    """Number of tokens generated."""
    engine.submit(requests)
    tokens, num_left = 0, len(requests.row_ids)
    while num_left:
        ended = engine.advance(most_steps)
        tokens, num_left = tokens + len(ended.response_ids.values), num_left - len(ended)
    return tokens


def directly(llm: Any, requests: Requests) -> int:
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    asked = responses_of(requests, [None])
    params = [SamplingParams(**arguments_of(item, ()), seed=item.row_id) for item in asked]
    prompts = [tokens_input(requests.prompts.row(at).tolist()) for at in requests.prompt_of.tolist()]
    return sum(len(result.outputs[0].token_ids) for result in llm.generate(prompts, params, use_tqdm=False))


def systems(path: str, settings: VLLMSettings) -> dict[str, Callable[[Requests], int]]:
    ours = load_start()(settings, path, PolicyByLayers.of_files(path, torch.float32), (), CPU)
    from vllm import LLM

    # as our engine has it while it starts; its arguments make vLLM a rank of a world, which looks for its number
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    arguments = engine_arguments(settings, path, is_cpu=True)
    llm = LLM(**{**arguments, "load_format": "auto", "kv_cache_memory_bytes": 1 << 28})
    plain = TransformersRollout(load_policy(path, torch.float32, CPU), CPU, ())
    return {
        "ours": lambda requests: through(ours, requests),
        "vllm": lambda requests: directly(llm, requests),
        "transformers": lambda requests: through(plain, requests),
        "ours by 8": lambda requests: through(ours, requests, STEPS),
        "transformers by 8": lambda requests: through(plain, requests, STEPS),
    }


def compare(rows: int, tokens: int, repeats: int, clock: Callable[[], float]) -> None:
    """Prints a line for each case."""
    draw = np.random.default_rng(0)
    ragged = np.clip(draw.lognormal(np.log(tokens / 4), 0.8, rows), 1, tokens).astype(np.int64)
    cases = {"equal": np.full(rows, tokens), "ragged": ragged}
    with tempfile.TemporaryDirectory() as directory:
        write_model(directory)
        built = systems(directory, VLLMSettings("float32", rows, PROMPT_TOKENS + tokens))
    print(f"{rows} rows, at most {tokens} tokens, {torch.get_num_threads()} threads, medians of {repeats}")
    for name, lengths in cases.items():
        times = measured(built, asked_for(lengths), repeats, clock)
        total, took = int(lengths.sum()), {system: statistics.median(item) for system, item in times.items()}
        item = "  ".join(f"{system} {spent * 1e3:7.1f} ms ({total / spent:7.0f}/s)" for system, spent in took.items())
        print(f"{name:6s} tokens {total:6d}  {item}  ours {took['vllm'] / took['ours']:.3f} of vllm's speed")
        for engine in ("ours", "transformers"):
            ratios = [whole / cut for whole, cut in zip(times[engine], times[f"{engine} by 8"], strict=True)]
            medians = took[engine] / took[f"{engine} by 8"]
            of_pairs = statistics.median(ratios)
            print(f"       {engine}: advance({STEPS}) {medians:.3f} of advance(), of pairs {of_pairs:.3f}")


def measured(
    built: dict[str, Callable[[Requests], int]], requests: Requests, repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of each system, one after the other, after a round that warms up."""
    times: dict[str, list[float]] = {name: [] for name in built}
    for repeat in range(repeats + 1):
        for name, run in built.items():
            start = clock()
            assert run(requests) == requests.max_tokens.sum(), "every row is as long as it may be"
            if repeat:
                times[name].append(clock() - start)
    return times
