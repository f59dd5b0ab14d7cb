"""Which part of each tensor of a checkpoint a rank keeps that generates with others: its slice. Pure.

    rows      queries, gate and up of the MLP or of every expert; keys and values by whole heads; words
    columns   the output of attention; down of the MLP or of every expert
    all       norms, routers, biases of what is cut by columns, towers; every tensor of a family that is not known, or
              that is not cut (`ModelFamily.sliced`)

It is how vLLM divides a layer in tensor parallelism (its `model_executor/layers`): ranks beyond the key heads keep the
same ones, and words are counted up to a multiple of WORD_BLOCK before they are divided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rljob_api.memory.model_shape import ModelShape

WORD_BLOCK = 64
"""What vLLM fills the rows of an embedding and of the last layer up to."""

_LAYER = re.compile(r"\.layers\.\d+\.(?:self_attn|mlp)\.(?:experts\.\d+\.)?(?P<matrix>\w+)\.(?P<what>weight|bias)$")
_WORDS = re.compile(r"(^|\.)(embed_tokens|lm_head)\.(weight|bias)$")
_TOWER = "vis"
"""Part of the name of every tensor of a vision tower."""
_ROWS = frozenset(("q_proj", "gate_proj", "up_proj", "fc1"))
_KEY_ROWS = frozenset(("k_proj", "v_proj"))
_COLUMNS = frozenset(("o_proj", "down_proj", "dense", "fc2"))

Span = tuple[int, int]
"""Rows or columns: the first one, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class KeptPart:
    """What ranks `first` to `last` of a copy keep of one tensor: `spans` of an axis, one behind the other."""

    first: int
    last: int
    axis: int = 0
    spans: tuple[Span, ...] | None = None
    """None: all of it."""

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Shape of the part of a tensor of shape `whole`."""
        if self.spans is None:
            return tuple(whole)
        length = sum(stop - start for start, stop in self.spans)
        return (*whole[: self.axis], length, *whole[self.axis + 1 :])


@dataclass(frozen=True, slots=True)
class WeightSlices:
    """How the ranks of a copy that generates share the tensors of a checkpoint."""

    tensor: int = 1
    """Ranks that share every layer."""
    heads: int = 0
    """Query heads; 0 where the family is not known, or not cut: of those every rank keeps all."""
    key_heads: int = 0

    @staticmethod
    def of(shape: ModelShape | None, tensor: int) -> WeightSlices:
        """Those of a model that `tensor` ranks share."""
        if shape is None or not shape.family.sliced:
            return WeightSlices(tensor)
        return WeightSlices(tensor, shape.heads, shape.key_heads)

    def parts(self, name: str, shape: Sequence[int]) -> tuple[KeptPart, ...]:
        """The parts of a tensor that differ, by rank.

        Raises ValueError naming a tensor of which ranks cannot keep equal parts.
        """
        match = None if self.tensor == 1 or not self.heads or _TOWER in name else _LAYER.search(name)
        if match is not None:
            return self._of_layer(name, match["matrix"], match["what"], shape)
        if self.tensor > 1 and self.heads and _WORDS.search(name):
            return self._words(shape[0])
        return (KeptPart(0, self.tensor - 1),)

    def part(self, name: str, shape: Sequence[int], rank: int) -> KeptPart:
        """What one rank of a copy keeps of a tensor."""
        return next(part for part in self.parts(name, shape) if part.first <= rank <= part.last)

    def _of_layer(self, name: str, matrix: str, what: str, shape: Sequence[int]) -> tuple[KeptPart, ...]:
        if matrix in _ROWS:
            return self._equal(name, [shape[0]], [self.tensor])
        if matrix in _KEY_ROWS:
            return self._equal(name, [shape[0]], [min(self.tensor, self.key_heads)])
        if matrix == "gate_up_proj":
            return self._equal(name, [shape[0] // 2] * 2, [self.tensor] * 2)
        if matrix == "qkv_proj":
            head = shape[0] // (self.heads + 2 * self.key_heads)
            keys = min(self.tensor, self.key_heads)
            return self._equal(name, [self.heads * head, *[self.key_heads * head] * 2], [self.tensor, keys, keys])
        if matrix in _COLUMNS and what == "weight":
            return self._equal(name, [shape[1]], [self.tensor], axis=1)
        return (KeptPart(0, self.tensor - 1),)

    def _equal(self, name: str, lengths: Sequence[int], counts: Sequence[int], axis: int = 0) -> tuple[KeptPart, ...]:
        """Parts of a tensor of some blocks, each of a length and in a number of equal pieces."""
        for length, count in zip(lengths, counts, strict=True):
            if length % count or self.tensor % count:
                rows = "columns" if axis else "rows"
                raise ValueError(f"{length} {rows} of {name} cannot be shared equally by {self.tensor} ranks")
        num_parts = max(counts)
        result = []
        for number in range(num_parts):
            spans, start = [], 0
            for length, count in zip(lengths, counts, strict=True):
                size, piece = length // count, number * count // num_parts
                spans.append((start + size * piece, start + size * (piece + 1)))
                start += length
            result.append(self._part(number, num_parts, axis, tuple(spans)))
        return tuple(result)

    def _words(self, num_words: int) -> tuple[KeptPart, ...]:
        """The last ranks may have fewer, or none."""
        size, rest = divmod(padded_words(num_words), self.tensor)
        if rest:
            raise ValueError(f"{num_words} words cannot be shared equally by {self.tensor} ranks")
        edges = [min(size * rank, num_words) for rank in range(self.tensor + 1)]
        return tuple(self._part(rank, self.tensor, 0, (span,)) for rank, span in enumerate(pairwise(edges)))

    def _part(self, number: int, num_parts: int, axis: int, spans: tuple[Span, ...]) -> KeptPart:
        sharing = self.tensor // num_parts
        return KeptPart(number * sharing, (number + 1) * sharing - 1, axis, spans)


def padded_words(num_words: int) -> int:
    """Rows of an embedding as it is divided."""
    return -(-num_words // WORD_BLOCK) * WORD_BLOCK


def slice_parameters(shape: ModelShape, tensor: int) -> int:
    """Parameters that the rank keeps which has most of a model that `tensor` ranks share."""
    if tensor == 1 or not shape.family.sliced:
        return shape.parameters
    family, hidden = shape.family, shape.hidden
    keys = shape.key_width * shape.layers * 2 * (hidden + family.query_bias)
    words = shape.embedding * (1 if shape.tied else 2)
    divided = _divided(shape)
    cut_words = min(shape.vocabulary, padded_words(shape.vocabulary) // tensor) * hidden * (1 if shape.tied else 2)
    rest = shape.parameters - divided - keys - words
    return divided // tensor + keys // min(tensor, shape.key_heads) + cut_words + rest


def _divided(shape: ModelShape) -> int:
    """Parameters of which every rank keeps as many: matrices besides those of keys, values and words."""
    family, hidden, layers = shape.family, shape.hidden, shape.layers
    attention = layers * shape.query_width * (2 * hidden + family.query_bias)
    dense = layers if shape.experts is None else shape.experts.dense_layers
    return attention + dense * family.projections * hidden * shape.intermediate + shape.all_experts
