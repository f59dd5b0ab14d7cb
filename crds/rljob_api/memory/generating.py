"""Memory of a model that generates.

cache    rows x columns x layers x 2 x key width x c: keys and values of every row that is decoded at once, up to the
         longest prompt and the longest response; a quarter more columns where rows come in waves
logits   of one token of each row, their distribution and the draw from it: 3 x rows x vocabulary x max(c, 4)
"""

from __future__ import annotations

from rljob_api.memory.model_shape import ModelShape


def row_cache_bytes(shape: ModelShape, columns: int, computed: int) -> int:
    """columns: tokens of the row. computed: bytes of a number."""
    return columns * shape.layers * 2 * shape.key_width * computed


def draw_bytes(shape: ModelShape, rows: int, computed: int) -> int:
    """Of one step."""
    return 3 * rows * shape.vocabulary * max(computed, 4)
