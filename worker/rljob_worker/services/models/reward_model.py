"""A sequence classifier with one output: how good a response is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from rljob_api.catalogue.services import RewardModelOptions
from rljob_worker.services.batches import batches_by_length
from rljob_worker.services.models.loading import (
    Answer,
    load_model,
    load_tokenizer,
    padded,
    require_labels,
    tokens_of,
)
from rljob_worker.services.requests import BadRequest, Row


class RewardModel:
    """Bradley-Terry: P(a is better than b) = sigmoid(reward(a) - reward(b))."""

    def __init__(self, options: RewardModelOptions) -> None:
        self._options = options
        self._tokenizer = load_tokenizer(options)
        self._model = load_model(AutoModelForSequenceClassification, options)
        require_labels(self._model, options.path, 1)
        self._model.config.pad_token_id = self._tokenizer.pad_token_id

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """Of each row, with `truncated`: 1 where its text was longer than maxTokens and lost its beginning."""
        options = self._options
        tokens = [tokens_of(self._tokenizer, row, options) for row in rows]
        kept = [each[-options.max_tokens :] or [self._tokenizer.pad_token_id] for each in tokens]
        found: dict[int, float] = {}
        for batch in batches_by_length([len(each) for each in kept], options.batch_tokens):
            found |= zip(batch, self._numbers([kept[i] for i in batch]), strict=True)
        return [{"reward": found[i], "truncated": float(len(tokens[i]) > options.max_tokens)} for i in range(len(rows))]

    def answer(self, path: str, body: Any) -> Any:
        """Nothing but rewards is asked of it. Raises BadRequest."""
        raise BadRequest(f"a reward model has no route {path}")

    @torch.inference_mode()
    def _numbers(self, rows: Sequence[Sequence[int]]) -> list[float]:
        logits = self._model(**padded(rows, self._tokenizer.pad_token_id)).logits.float().squeeze(-1)  # [rows]
        return (logits.sigmoid() if self._options.activation == "Sigmoid" else logits).tolist()
