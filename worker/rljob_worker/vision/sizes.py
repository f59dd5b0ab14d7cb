"""What size a picture has to a model: the rule of Qwen2-VL and its successors, in whole numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rljob_worker.vision.pictures import BadPicture

LONGEST_RATIO = 200
"""How many times as long as wide a picture may be."""


@dataclass(frozen=True, slots=True)
class PixelBudget:
    """Pixels that a picture has at least and at most once it is resized."""

    min_pixels: int
    max_pixels: int


def fitted_size(size: tuple[int, int], factor: int, budget: PixelBudget) -> tuple[int, int]:
    """(height, width) of a picture of `size` once it is resized: multiples of `factor` within the budget, the sides
    nearly in proportion. Raises BadPicture for one that is more than LONGEST_RATIO times as long as wide.

    20 x 30 with factor 28 and at least 1024 pixels: 28 x 28 has 784, so its sides grow by sqrt(1024 / 600) to 28 x 56.

    The rule of transformers, until it changes nothing more: applied once it leaves a long narrow picture above the
    budget, and an engine that applies it again would see another size.
    """
    height, width = size
    if max(size) > LONGEST_RATIO * min(size):
        raise BadPicture(f"the picture has {width} x {height} pixels; its sides may be at most 1 : {LONGEST_RATIO}")
    fitted = _fitted_once(size, factor, budget)
    while (again := _fitted_once(fitted, factor, budget)) != fitted and again[0] * again[1] < fitted[0] * fitted[1]:
        fitted = again
    return fitted


def _fitted_once(size: tuple[int, int], factor: int, budget: PixelBudget) -> tuple[int, int]:
    height, width = size
    # `round` takes the even one of two neighbours that are equally near, as transformers does
    fitted = (round(height / factor) * factor, round(width / factor) * factor)
    pixels = fitted[0] * fitted[1]
    if pixels > budget.max_pixels:
        shrink = math.sqrt(height * width / budget.max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if pixels < budget.min_pixels:
        grow = math.sqrt(budget.min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return fitted
