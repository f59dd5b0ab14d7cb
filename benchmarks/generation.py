"""Generation: our Transformers engine against `model.generate`, the same weights, prompts, lengths and sampling.

    python benchmarks/generation.py [--rows 64] [--tokens 48] [--repeats 7]
    ~/.cache/rljob/vllm/bin/python benchmarks/generation.py --engine VLLM      against vLLM itself; after `make vllm`

Three cases. `equal`: every response is as long as allowed. `ragged`: response lengths are log-normal, forced per row
in both systems by a logits rule that allows the end token at that row's length and nowhere else. `greedy`: equal
lengths at temperature 0. Both systems run in turn, so that a busy machine slows both; the median of each is compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList, Qwen3Config

from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.sampling import sample_each
from rljob_worker.engines.rollout.transformers import TransformersRollout, rows
from rljob_worker.random_bits import random_streams

END, VOCABULARY, GROUP_SIZE, PROMPT_TOKENS = 1, 64, 8, 12


def build_models() -> tuple[torch.nn.Module, torch.nn.Module]:
    """0.8 M parameters twice: as our engine loads them, and as transformers does."""
    config = Qwen3Config(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        eos_token_id=END,
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        ours = random_policy(directory, torch.float32, seed=0)
    stock = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    stock.load_state_dict(ours.state_dict())
    return ours, stock


class EndsAt(LogitsProcessor):
    """In `model.generate`: row r draws the end token as its lengths[r]-th token, and never before."""

    def __init__(self, lengths: np.ndarray, prompt_tokens: int) -> None:
        self.lengths = torch.from_numpy(lengths)
        self.prompt_tokens = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return force_end(scores, self.lengths == input_ids.shape[1] - self.prompt_tokens + 1)


def force_end(logits: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Only the end token where a row ends, every other token where it does not."""
    logits = logits.clone()
    logits[:, END] = torch.where(ends, 1e9, -1e9).to(logits.dtype)
    return logits


def ours(
    model: torch.nn.Module, prompts: list[np.ndarray], lengths: np.ndarray, sampling: Sampling, max_tokens: int
) -> int:
    """Number of tokens generated; the rule of `EndsAt` is put where our engine samples."""
    streams = random_streams(sampling.seed, np.arange(len(lengths)))
    order = np.argsort(streams)

    def ruled(logits, ways, way_of, of_rows, positions):  # type: ignore[no-untyped-def]
        row_ids = order[np.searchsorted(streams[order], of_rows)]
        ends = torch.from_numpy(lengths[row_ids] == positions + 1)
        return sample_each(force_end(logits, ends), ways, way_of, of_rows, positions)

    engine = TransformersRollout(model, torch.device("cpu"), (END,))
    rows.sample_each = ruled
    try:
        responses = generate(engine, prompts, sampling, np.arange(len(lengths)), GROUP_SIZE, max_tokens)
    finally:
        rows.sample_each = sample_each
    assert responses.response_ids.lengths.tolist() == lengths.tolist()
    return int(lengths.sum())


def stock(
    model: torch.nn.Module, prompts: list[np.ndarray], lengths: np.ndarray, sampling: Sampling, max_tokens: int
) -> int:
    """`model.generate` with its cache, the group made by `num_return_sequences`, which greedy search does not allow."""
    ids = torch.from_numpy(np.stack(prompts))
    is_greedy = sampling.temperature == 0
    if is_greedy:
        ids = ids.repeat_interleave(GROUP_SIZE, 0)
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=not is_greedy,
            temperature=None if is_greedy else sampling.temperature,
            top_k=None if is_greedy else 0,
            max_new_tokens=max_tokens,
            num_return_sequences=1 if is_greedy else GROUP_SIZE,
            use_cache=True,
            logits_processor=LogitsProcessorList([EndsAt(lengths, ids.shape[1])]),
        )
    argmax = (out[:, ids.shape[1] :] == END).long().argmax(1) + 1
    assert argmax.tolist() == lengths.tolist()
    return int(lengths.sum())


def seconds(run: Callable[[], int], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48, help="longest response")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds of the process: for a busy machine")
    parser.add_argument("--engine", choices=("Transformers", "VLLM"), default="Transformers")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.engine == "VLLM":
        from generation_vllm import compare

        compare(options.rows, options.tokens, options.repeats, clock)
        return
    rng = np.random.default_rng(0)
    packed, plain = build_models()
    prompts = [rng.integers(2, VOCABULARY, PROMPT_TOKENS) for _ in range(options.rows // GROUP_SIZE)]
    num_rows = len(prompts) * GROUP_SIZE
    equal = np.full(num_rows, options.tokens)
    ragged = np.clip(rng.lognormal(np.log(options.tokens / 4), 0.8, num_rows), 1, options.tokens).astype(int)
    cases = {"equal": (equal, 1.0), "ragged": (ragged, 1.0), "greedy": (equal, 0.0)}
    print(
        f"{num_rows} rows, at most {options.tokens} tokens, {torch.get_num_threads()} threads, "
        f"medians of {options.repeats}"
    )
    for name, (lengths, temperature) in cases.items():
        sampling = Sampling(temperature=temperature)
        times: dict[str, list[float]] = {"ours": [], "stock": []}
        for repeat in range(options.repeats + 1):
            took = {
                "ours": seconds(lambda: ours(packed, prompts, lengths, sampling, options.tokens), clock),  # noqa: B023
                "stock": seconds(lambda: stock(plain, prompts, lengths, sampling, options.tokens), clock),  # noqa: B023
            }
            if repeat:  # the first one warms up
                for system, spent in took.items():
                    times[system].append(spent)
        mine, theirs = statistics.median(times["ours"]), statistics.median(times["stock"])
        tokens = int(lengths.sum())
        print(
            f"{name:7s} tokens {tokens:6d}  ours {mine * 1e3:7.1f} ms ({tokens / mine:8.0f}/s)  "
            f"generate {theirs * 1e3:7.1f} ms ({tokens / theirs:8.0f}/s)  ratio {theirs / mine:.2f}x"
        )


if __name__ == "__main__":
    main()
