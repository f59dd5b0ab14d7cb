"""A Qwen3 small enough that a forward pass costs a laptop nothing, randomly initialised from a seed."""

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


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
