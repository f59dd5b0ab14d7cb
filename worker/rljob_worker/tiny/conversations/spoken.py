"""Conversations as a model reads them: what the assistant says is learnt, what others say is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from rljob_worker.tiny.pretrain import IGNORED, Labelled

Message = dict[str, str]


@dataclass(frozen=True)
class Spoken:
    """A conversation of the corpus."""

    messages: tuple[Message, ...]
    """Calls of tools are text of the assistant."""
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas of what it may call."""

    @property
    def num_characters(self) -> int:
        """Characters of all messages."""
        return sum(len(message["content"]) for message in self.messages)


def said(role: str, content: str) -> Message:
    """A message."""
    return {"role": role, "content": content}


def collate_spoken(tokenizer: PreTrainedTokenizerFast, conversations: list[Spoken]) -> Labelled:
    """(tokens, labels), both [rows, length], padded on the right; labels are those of the assistant's turns, ends
    included, and -100 elsewhere."""
    rows = [_labelled(tokenizer, conversation) for conversation in conversations]
    length = max(len(ids) for ids, _ in rows)
    tokens = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), IGNORED)
    for row, (ids, of_assistant) in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.where(torch.tensor(of_assistant), torch.tensor(ids), IGNORED)
    return tokens, labels


def _labelled(tokenizer: PreTrainedTokenizerFast, conversation: Spoken) -> tuple[list[int], list[bool]]:
    text = tokenizer.apply_chat_template(
        list(conversation.messages), tools=list(conversation.tools) or None, tokenize=False
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    begin, end = tokenizer.convert_tokens_to_ids("<|assistant|>"), tokenizer.eos_token_id
    of_assistant, speaks = [], False
    for token in ids:
        of_assistant.append(speaks)
        speaks = token == begin or (speaks and token != end)
    return ids, of_assistant
