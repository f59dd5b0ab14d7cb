"""A Qwen3 small enough that a forward pass costs a laptop nothing: made from a seed, and asked for greedy answers."""

import re

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rljob_worker.tiny.tokenizer import encode_prompt

_RESULT = re.compile(r"#### (-?\d+)$")


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """About 0.8 M parameters; heads divide by two, so two tensor-parallel ranks can share the model."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.02,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """The untrained model in float32, a function of `seed`; torch's global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(build_config(tokenizer))


def stated_result(answer: str) -> str | None:
    """The `n` of the `#### n` that ends `answer`, or None."""
    match = _RESULT.search(answer.strip())
    return match.group(1) if match else None


def greedy_answers(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], max_tokens: int = 32
) -> list[str]:
    """One answer per question, each at most `max_tokens` long."""
    prompts = [torch.tensor(encode_prompt(tokenizer, question)) for question in texts]
    answers: list[str] = [""] * len(prompts)
    # Prompts of equal length make batches without padding.
    for length in sorted({len(prompt) for prompt in prompts}):
        chosen = [index for index, prompt in enumerate(prompts) if len(prompt) == length]
        with torch.inference_mode():
            tokens = _greedy_tokens(model, torch.stack([prompts[index] for index in chosen]), max_tokens)
        for index, text in zip(chosen, _texts(tokenizer, tokens), strict=True):
            answers[index] = text
    return answers


def _greedy_tokens(model: Qwen3ForCausalLM, prompts: Tensor, max_tokens: int) -> Tensor:
    """prompts [rows, length] -> tokens [rows, at most max_tokens], stopping once every row has ended."""
    output = model(prompts, use_cache=True, logits_to_keep=1)
    columns = [output.logits[:, -1].argmax(-1)]
    ended = columns[0] == model.config.eos_token_id
    while len(columns) < max_tokens and not bool(ended.all()):
        output = model(columns[-1][:, None], past_key_values=output.past_key_values, use_cache=True)
        columns.append(output.logits[:, -1].argmax(-1))
        ended |= columns[-1] == model.config.eos_token_id
    return torch.stack(columns, dim=1)


def _texts(tokenizer: PreTrainedTokenizerFast, tokens: Tensor) -> list[str]:
    end = tokenizer.eos_token_id
    rows = [row[: row.index(end)] if end in row else row for row in tokens.tolist()]
    return [tokenizer.decode(row) for row in rows]


def greedy_accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[dict[str, str]],
    max_tokens: int = 32,
) -> float:
    """The share of `rows` (`question`, `answer`) whose greedy answer states the right result."""
    answers = greedy_answers(model, tokenizer, [row["question"] for row in rows], max_tokens)
    pairs = zip(answers, rows, strict=True)
    return sum(stated_result(text) == stated_result(row["answer"]) for text, row in pairs) / len(rows)
