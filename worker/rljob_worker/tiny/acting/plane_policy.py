"""A tiny OpenVLA-OFT for the plane: two towers of one layer, a Llama of two, and a tokenizer of a dozen words."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rljob_worker.embodied.action_policy import PROMPT
from rljob_worker.engines.models.actions import OpenVLAOFTConfig, OpenVLAOFTPolicy
from rljob_worker.tiny.acting.plane import SIDE, TARGETS, instruction

CHUNK, DIMENSIONS = 4, 2
BINS = 6
"""Action words; as OpenVLA counts they are five bins: -1, -0.5, 0, 0.5 and 1."""
_PATCH = 16
_TOWER = {"hidden": 48, "depth": 2, "heads": 2, "intermediate": 96, "patch": _PATCH}
_PADS = 4
"""Words that pad the vocabulary: the first is a picture's."""


def write_plane_policy(folder: Path, seed: int) -> None:
    """Write config, weights, tokenizer and processor of a policy that knows nothing."""
    words = _words()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = OpenVLAOFTPolicy(_config(len(words) + BINS + _PADS))
    model.save_pretrained(folder)
    _tokenizer(words).save_pretrained(folder)
    processor = {
        "input_sizes": [[3, SIDE, SIDE]] * 2,
        # black, most of a picture, is 0: as -1 it is nearly all that a tower sees of a patch
        "means": [[0.0] * 3] * 2,
        "stds": [[1.0] * 3] * 2,
        "interpolations": ["bilinear"] * 2,
        "image_resize_strategy": "resize-naive",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def _config(vocabulary: int) -> OpenVLAOFTConfig:
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    # bins are a fifth of [-1, 1] wide, and their outermost centres at 0.8: 1 in units of the plane
    statistics = {"action": {"q01": [-1.25] * DIMENSIONS, "q99": [1.25] * DIMENSIONS}}
    return OpenVLAOFTConfig(
        text_config=text,
        image_sizes=[SIDE, SIDE],
        vision_towers=[{**_TOWER, "registers": 1, "layer_scale": True}, _TOWER],
        pad_to_multiple_of=_PADS,
        n_action_bins=BINS,
        action_dim=DIMENSIONS,
        num_actions_chunk=CHUNK,
        norm_stats={"plane": statistics},
        initializer_range=0.1,
    )


def _words() -> list[str]:
    """All that is read, in the order of token ids."""
    texts = [PROMPT.format(instruction=instruction(task)) for task in TARGETS]
    spoken = dict.fromkeys(word for text in texts for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text))
    return ["<pad>", "<s>", "</s>", "<unk>", *spoken]


def _tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    named = [*words, *(f"<bin {number}>" for number in range(BINS)), *(f"<pad {number}>" for number in range(_PADS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(named)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
