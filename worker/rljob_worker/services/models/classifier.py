"""What classifiers share that grade rows: a head of `num_labels` outputs over texts of their own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_api.catalogue.services import ServedTextModel
from rljob_worker.errors import InvalidJob
from rljob_worker.services.batches import map_in_batches
from rljob_worker.services.models.loading import load_model, on_device, padded
from rljob_worker.services.placement import ModelPlacement
from rljob_worker.services.requests import BadRequest
from rljob_worker.services.texts import load_grading_tokenizer


class ServedClassifier:
    """A model of an Auto class of transformers, and its tokenizer."""

    def __init__(self, auto_class: Any, options: ServedTextModel, num_labels: int, place: ModelPlacement) -> None:
        """Raises InvalidJob: no such model, one of another number of outputs, or no such place."""
        self.tokenizer = load_grading_tokenizer(options.tokenizer or options.path)
        self._model = load_model(auto_class, options, place)
        if (result := self._model.config.num_labels) != num_labels:
            raise InvalidJob(
                f"options.path {options.path!r} has {result} outputs, and this application reads {num_labels}"
            )
        self._model.config.pad_token_id = self.tokenizer.pad_token_id
        self._batch_tokens = options.batch_tokens

    def logits(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """The head's outputs for each text, in float32: [labels] of the whole text, or [its tokens or more, labels]."""
        return map_in_batches(texts, [len(text) for text in texts], self._batch_tokens, self._batch)

    def answer(self, path: str, body: Any) -> Any:
        """Nothing but rewards is asked of it. Raises BadRequest."""
        raise BadRequest(f"a classifier has no route {path}")

    def _batch(self, texts: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        with torch.inference_mode():
            return head_of(self._model, padded(texts, self.tokenizer.pad_token_id))


def head_of(model: Any, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """What the model says of each of `inputs`, which it reads wherever it lies; float32 on the CPU."""
    logits: Sequence[Tensor] = model(**on_device(inputs, model.device)).logits.float().cpu().unbind()
    return logits
