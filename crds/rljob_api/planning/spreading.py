"""Whether a model can be shared out to the workers of a copy.  Where its config is at hand."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import EnginePlan
from rljob_api.vocabulary.problem import Problem


def spreading_problems(engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    """Of the model that an engine trains, scores or generates with."""
    heads = f"the {shape.heads} attention heads and {shape.key_heads} key heads"
    if engine.kind == "Rollout":
        field, size, sizes = "rollout.parallelism.tensor", engine.mesh.tp, tensor_sizes(shape)
        shared = f"{heads}, and the MLP's {shape.intermediate} columns,"
    else:
        field, size, sizes = "training.parallelism.context", engine.mesh.cp, context_sizes(shape)
        shared = heads
    if size not in sizes:
        message = f"so many workers cannot share {shared} of {engine.path} equally"
        yield problem(f"spec.{field}", size, message, f"Write one of {', '.join(map(str, sizes))}.")


def context_sizes(shape: ModelShape) -> tuple[int, ...]:
    """How many workers may share the sequences of a model: each gets whole attention heads, and the key heads that they
    ask, which are its own or one that it shares with others."""
    divisors = (size for size in range(1, shape.heads + 1) if shape.heads % size == 0)
    return tuple(size for size in divisors if shape.key_heads % size == 0 or size % shape.key_heads == 0)


def tensor_sizes(shape: ModelShape) -> tuple[int, ...]:
    """How many workers may share the layers of a model that generates: heads, as above, and the columns of its MLP."""
    return tuple(size for size in context_sizes(shape) if shape.intermediate % size == 0)
