"""A sequence classifier with one output: how good a response is."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoModelForSequenceClassification

from rljob_api.catalogue.services import RewardModelOptions
from rljob_worker.services.models.classifier import ServedClassifier
from rljob_worker.services.models.loading import Answer
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.requests import Row
from rljob_worker.services.texts import graded_texts


class ServedRewardModel(ServedClassifier):
    """Bradley-Terry: P(a is better than b) = sigmoid(reward(a) - reward(b))."""

    def __init__(self, options: RewardModelOptions, place: ModelPlacement = ON_CPU) -> None:
        super().__init__(AutoModelForSequenceClassification, options, num_labels=1, place=place)
        self._options = options

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """Rewards of rows, with `truncated`: 1 where the text was longer than maxTokens and lost its beginning."""
        options = self._options
        texts = graded_texts(self.tokenizer, rows, options.template, options.max_tokens)
        logits = self.logits([text.tokens for text in texts])
        result = [logit.sigmoid() for logit in logits] if options.activation == "Sigmoid" else logits
        return [
            {"reward": number.item(), "truncated": float(text.is_truncated)}
            for text, number in zip(texts, result, strict=True)
        ]
