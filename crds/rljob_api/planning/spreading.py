"""Whether a model's heads can be shared out to the workers of a copy.  Where its config is at hand."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.vocabulary.problem import Problem


def spreading_problems(path: str, shape: ModelShape, mesh: Mesh) -> Iterator[Problem]:
    """Of the model of this path, which the ranks of the mesh train or score."""
    sizes = context_sizes(shape)
    if mesh.cp not in sizes:
        yield problem(
            "spec.training.parallelism.context",
            mesh.cp,
            f"so many workers cannot share the {shape.heads} attention heads and {shape.key_heads} key heads of {path} "
            "equally",
            f"Write one of {', '.join(map(str, sizes))}.",
        )


def context_sizes(shape: ModelShape) -> tuple[int, ...]:
    """How many workers may share the sequences of a model: each gets whole attention heads, and the key heads that they
    ask, which are its own or one that it shares with others."""
    divisors = (size for size in range(1, shape.heads + 1) if shape.heads % size == 0)
    return tuple(size for size in divisors if shape.key_heads % size == 0 or size % shape.key_heads == 0)
