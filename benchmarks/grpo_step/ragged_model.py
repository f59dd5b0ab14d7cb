"""A Qwen3 that draws the length of its response and counts down to it, so that lengths are log-normal without any hook.

Token `k` says "k more": the prompt's last token, `go`, is followed by `k` with the probability of length k + 1, then
come k - 1, k - 2 ... 1 and the end token. Embeddings and the output head are set to do that; the layers between are
random and too small to disturb it. To both systems it is a plain model directory, computed in full.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from grpo_step.lengths import log_normal_lengths

_HIDDEN = 192
_CERTAINTY = 60.0
"""Logit of the next number in a countdown; another one is 40 lower in the worst case."""
_WORDS = [f"w{i}" for i in range(32)]


def make_ragged(directory: Path, *, mean: int, longest: int, prompt_tokens: int, num_prompts: int) -> None:
    """Write `model/` and `train.parquet` with column `question`, unless they are there."""
    if (directory / "train.parquet").exists():
        return
    tokenizer = _tokenizer(longest)
    model = _model(tokenizer, log_normal_lengths(mean, longest))
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    rng = random.Random(0)
    rows = [{"question": " ".join([*rng.choices(_WORDS, k=prompt_tokens - 1), "go"])} for _ in range(num_prompts)]
    pq.write_table(pa.Table.from_pylist(rows), directory / "train.parquet")


def _tokenizer(longest: int) -> PreTrainedTokenizerFast:
    """Words split at spaces; the end token is number 0, `k` more is number k."""
    words = ["<|end|>", *(str(k) for k in range(1, longest)), "<|pad|>", "go", *_WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|pad|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")


@torch.no_grad()
def _model(tokenizer: PreTrainedTokenizerFast, lengths: list[float]) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(_config(tokenizer, len(lengths)))
    go, numbers = tokenizer.convert_tokens_to_ids("go"), len(lengths)
    meaning = torch.nn.functional.normalize(torch.randn(len(tokenizer), _HIDDEN - 1), dim=1)
    # dim 0 is `go`'s own; every embedding has the norm sqrt(hidden), so that the final norm changes none
    embedding = torch.cat([torch.zeros(len(tokenizer), 1), meaning], dim=1)
    embedding[go] = torch.eye(_HIDDEN)[0]
    model.model.embed_tokens.weight.copy_(embedding * math.sqrt(_HIDDEN))
    head = torch.zeros_like(embedding)
    head[: numbers - 1, 1:] = meaning[1:numbers] * _CERTAINTY  # after k comes k - 1
    head[:, 0] = -_CERTAINTY
    head[:numbers, 0] = torch.tensor(lengths).log()
    model.lm_head.weight.copy_(head / math.sqrt(_HIDDEN))
    return model


def _config(tokenizer: PreTrainedTokenizerFast, longest: int) -> Qwen3Config:
    """The shape of the tiny model of the quick start, with an output head of its own and more positions."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2 * longest,
        tie_word_embeddings=False,
        initializer_range=0.01,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
