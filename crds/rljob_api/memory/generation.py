"""Memory of a model that generates.

cache    rows x columns x layers x 2 x key width x c: keys and values of every row that is decoded at once, up to the
         longest prompt and the longest response; a quarter more columns where rows come in waves. Workers that share
         layers share key heads, too, as far as there is one for each
logits   of one token of each row, their distribution and the draw from it: 3 x rows x vocabulary x max(c, 4)
"""

from __future__ import annotations

from rljob_api.memory.model_shape import ModelShape


def row_cache_bytes(shape: ModelShape, columns: int, computed: int, tensor: int = 1) -> int:
    """Bytes of a row's KV cache on one worker.

    columns: tokens of the row. computed: bytes of a number. tensor: size of the tensor-parallel group.
    """
    return columns * shape.layers * 2 * max(1, shape.key_heads // tensor) * shape.head_dim * computed


def draw_bytes(shape: ModelShape, rows: int, computed: int) -> int:
    """Bytes that drawing the next token of every row takes in one step."""
    return 3 * rows * shape.vocabulary * max(computed, 4)
