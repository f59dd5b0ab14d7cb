"""A token classifier with two labels: how good each step of a response is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForTokenClassification

from rljob_api.catalogue.services import ProcessRewardModelOptions
from rljob_worker.services.batches import batches_by_length
from rljob_worker.services.models.loading import Answer, load_model, load_tokenizer, padded, require_labels
from rljob_worker.services.requests import BadRequest, Row, filled
from rljob_worker.services.steps import AGGREGATES, kept_pieces, steps_of


class ProcessRewardModel:
    """The score of a step is the probability of the second label at the last token of the separator after it."""

    def __init__(self, options: ProcessRewardModelOptions) -> None:
        self._options = options
        self._tokenizer = load_tokenizer(options)
        self._model = load_model(AutoModelForTokenClassification, options)
        require_labels(self._model, options.path, 2)

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """Of each row what its steps' scores add up to, with `steps`, how many had a score, and `truncated`: 1 where
        the text was longer than maxTokens and lost its beginning."""
        options = self._options
        read = [self._pieces(row) for row in rows]
        kept = [kept_pieces(head, pieces, options.max_tokens) for head, pieces in read]
        found: dict[int, list[float]] = {}
        for batch in batches_by_length([len(tokens) for tokens, _ in kept], options.batch_tokens):
            found |= zip(batch, self._scores([kept[i] for i in batch]), strict=True)
        aggregate = AGGREGATES[options.aggregate]
        lengths = [len(head) + sum(map(len, pieces)) for head, pieces in read]
        return [
            {
                "reward": aggregate(found[i]),
                "steps": float(len(found[i])),
                "truncated": float(lengths[i] > options.max_tokens),
            }
            for i in range(len(rows))
        ]

    def answer(self, path: str, body: Any) -> Any:
        """Nothing but rewards is asked of it. Raises BadRequest."""
        raise BadRequest(f"a process reward model has no route {path}")

    def _pieces(self, row: Row) -> tuple[list[int], list[list[int]]]:
        """Tokens of the text before the steps, and of each step with its separator."""
        separator = self._options.separator
        steps = steps_of(row["response"], separator)
        head = self._tokenizer(filled(self._options.template, row))["input_ids"]
        pieces = self._tokenizer([step + separator for step in steps], add_special_tokens=False)["input_ids"]
        return list(head), [list(piece) for piece in pieces]

    @torch.inference_mode()
    def _scores(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        logits = self._model(**padded([tokens for tokens, _ in rows], self._tokenizer.pad_token_id)).logits
        right = logits.float().softmax(-1)[..., 1]  # [rows, longest]
        return [right[i, ends].tolist() for i, (_, ends) in enumerate(rows)]
