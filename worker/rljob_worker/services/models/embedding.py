"""Texts as vectors: the mean over a model's last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from rljob_api.catalogue.services import EmbeddingOptions
from rljob_worker.services.batches import map_in_batches
from rljob_worker.services.models.loading import Answer, load_model, on_device, padded
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.requests import BadRequest, Row, texts_of
from rljob_worker.services.texts import load_grading_tokenizer

EMBEDDINGS = "/v1/embeddings"


class ServedEmbedding:
    """Answers OpenAI's embeddings, and how near a response is to its reference."""

    def __init__(self, options: EmbeddingOptions, place: ModelPlacement = ON_CPU) -> None:
        self._options = options
        self._tokenizer = load_grading_tokenizer(options.tokenizer or options.path)
        self._model = load_model(AutoModel, options, place)

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """The cosine between a row's response and its reference, with `truncated`: 1 where either was longer than
        maxTokens and lost its beginning. Raises BadRequest: a row without a reference."""
        for i, row in enumerate(rows):
            if not isinstance(row.get("reference"), str):
                raise BadRequest(f"rows[{i}].reference is not text; name the data's column in the reward's `column`")
        vectors, truncated = self._vectors([row[name] for row in rows for name in ("response", "reference")])
        cosines = (vectors[0::2] * vectors[1::2]).sum(-1).tolist()
        cut = [float(any(pair)) for pair in zip(truncated[0::2], truncated[1::2], strict=True)]
        return [{"reward": cosine, "truncated": item} for cosine, item in zip(cosines, cut, strict=True)]

    def answer(self, path: str, body: Any) -> Any:
        """Embeddings of texts. Raises BadRequest."""
        if path != EMBEDDINGS:
            raise BadRequest(f"an embedding has no route {path}; it has {EMBEDDINGS}")
        vectors, _ = self._vectors(texts_of(body))
        data = [{"object": "embedding", "index": i, "embedding": item} for i, item in enumerate(vectors.tolist())]
        return {"object": "list", "model": self._options.path, "data": data}

    def _vectors(self, texts: Sequence[str]) -> tuple[Tensor, list[bool]]:
        """[texts, hidden], and which texts were cut."""
        options = self._options
        tokens = [list(item) for item in self._tokenizer(list(texts))["input_ids"]]
        kept = [token[-options.max_tokens :] or [self._tokenizer.pad_token_id] for token in tokens]
        result = map_in_batches(kept, [len(item) for item in kept], options.batch_tokens, self._batch)
        return torch.stack(result), [len(token) > options.max_tokens for token in tokens]

    def _batch(self, texts: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        with torch.inference_mode():
            vectors: Sequence[Tensor] = mean_hidden(self._model, padded(texts, self._tokenizer.pad_token_id)).unbind()
        return vectors


def mean_hidden(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Mean over the tokens of each of `inputs`, on whatever device the model lies: [texts, hidden], of length
    1, on the CPU."""
    hidden = model(**on_device(inputs, model.device)).last_hidden_state.float().cpu()  # [texts, longest, hidden]
    mask = inputs["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
