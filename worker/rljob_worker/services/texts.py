"""What a model that grades responses reads of a row: the tokens of its own tokenizer, by its own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.services.requests import Row, fill_template

PROBE = "2 + 2 = 4, as everybody knows."
"""A text that every tokenizer has tokens for."""


def load_grading_tokenizer(path: str) -> Any:
    """The tokenizer of a directory or of a Hugging Face name. Raises InvalidJob."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InvalidJob(f"no tokenizer at {path!r}: {error}; name one in options.tokenizer") from error
    # where its files are missing transformers makes one without words, for which every text is the same
    if not set(tokenizer(PROBE)["input_ids"]) - set(tokenizer.all_special_ids):
        raise InvalidJob(f"no tokenizer at {path!r}: one without any word; name one in options.tokenizer")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of a row, as many as the model reads."""

    tokens: list[int]
    """One or more."""
    is_truncated: bool
    """Whether it was longer, and has lost its beginning."""


def graded_texts(
    tokenizer: Any,
    rows: Sequence[Row],
    template: str | None,
    max_tokens: int,
    template_arguments: Mapping[str, Any] | None = None,
) -> list[Text]:
    """template: with names in braces; None stands for the tokenizer's chat template over prompt and response, which
    gets the arguments, or where it has none, for one after the other."""
    read = [_tokens(tokenizer, row, template, template_arguments or {}) for row in rows]
    return [Text(item[-max_tokens:] or [tokenizer.pad_token_id], len(item) > max_tokens) for item in read]


def _tokens(tokenizer: Any, row: Row, template: str | None, arguments: Mapping[str, Any]) -> list[int]:
    if template is not None:
        return list(tokenizer(fill_template(template, row), add_special_tokens=False)["input_ids"])
    if tokenizer.chat_template is None:
        return list(tokenizer(row["prompt"] + row["response"])["input_ids"])
    messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
    return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **arguments)["input_ids"])
