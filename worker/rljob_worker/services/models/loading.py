"""Models and tokenizers as a service loads them: whole, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_api.catalogue.services import ServedModel, TextModel
from rljob_worker.errors import InvalidJob
from rljob_worker.services.requests import Row, filled

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}


def load_model(family: Any, options: ServedModel) -> Any:
    """A model of an Auto class of transformers, to read with. Raises InvalidJob: none there, or one of another kind,
    whose missing head would be random numbers."""
    try:
        model, told = family.from_pretrained(options.path, dtype=DTYPES[options.precision], output_loading_info=True)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"options.path {options.path!r} is no model for {family.__name__}: {error}") from error
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise InvalidJob(
            f"options.path {options.path!r} lacks weights that {family.__name__} needs ({names}); name a model that "
            "was trained as one"
        )
    return model.eval()


def load_tokenizer(options: ServedModel) -> Any:
    """Of the model, or the one that options name. Raises InvalidJob."""
    from transformers import AutoTokenizer

    path = options.tokenizer or options.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"no tokenizer at {path!r}: {error}; name one in options.tokenizer") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokens_of(tokenizer: Any, row: Row, options: TextModel) -> list[int]:
    """What a model reads of a row."""
    if options.template is not None:
        return list(tokenizer(filled(options.template, row), add_special_tokens=False)["input_ids"])
    if tokenizer.chat_template is None:
        return list(tokenizer(row["prompt"] + row["response"])["input_ids"])
    messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
    return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"])


def padded(rows: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, [rows, longest], padded on the right."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def require_labels(model: Any, path: str, wanted: int) -> None:
    """Raises InvalidJob unless the model has as many outputs."""
    if model.config.num_labels != wanted:
        raise InvalidJob(
            f"options.path {path!r} has {model.config.num_labels} outputs, and this application reads {wanted}"
        )


Answer = Mapping[str, float]
