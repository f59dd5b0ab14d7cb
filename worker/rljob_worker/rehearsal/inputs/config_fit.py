"""Do the weights of a model have the shapes that its config.json makes, as far as both are known: pure."""

from __future__ import annotations

import re

from rljob_api.memory.model_shape import ModelShape
from rljob_worker.rehearsal.inputs.weight_names import Shapes

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_TOWER = re.compile(r"vision|visual")


def misfit(shape: ModelShape, weights: Shapes) -> str | None:
    """The first difference, in words; None where there is none."""
    names = [name for name in weights if not _TOWER.search(name)]
    for name in names:
        for ending, wanted in _expected(shape).items():
            there = weights[name]
            if f".{name}".endswith(f".{ending}") and there is not None and there != wanted:
                return f"{name} is {list(there)} in its files, but config.json makes it {list(wanted)}"
    layers = {int(match[1]) for name in names if (match := _LAYER.search(name))}
    if layers and layers != set(range(shape.layers)):
        return f"its files have {_counted(layers)}, but config.json makes {shape.layers}"
    return None


def _expected(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """By the end of the name."""
    if shape.positions:
        return {"wte.weight": (shape.vocabulary, shape.hidden)}
    expected = {"embed_tokens.weight": (shape.vocabulary, shape.hidden)}
    if shape.family.fused:
        return expected
    return expected | {
        "self_attn.q_proj.weight": (shape.query_width, shape.hidden),
        "self_attn.k_proj.weight": (shape.key_width, shape.hidden),
        "mlp.up_proj.weight": (shape.intermediate, shape.hidden),
    }


def _counted(layers: set[int]) -> str:
    """`3 layers`, or, of those with a gap, `layers 0, 2`."""
    is_whole = layers == set(range(len(layers)))
    return f"{len(layers)} layers" if is_whole else f"layers {', '.join(map(str, sorted(layers)[:10]))}"
