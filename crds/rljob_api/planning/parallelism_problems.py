"""Whether a model can be spread over the ranks of its mesh: tensor, expert and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import FAMILIES, ModelShape
from rljob_api.memory.sizes import LEAST_STATE_BLOCK
from rljob_api.memory.weight_slices import WORD_BLOCK, padded_words
from rljob_api.planning.plan import EnginePlan
from rljob_api.vocabulary.problem import Problem


def parallelism_problems(engine: EnginePlan, shape: ModelShape, states: str = "Float32") -> Iterator[Problem]:
    """Problems with the parallelism of the model that an engine trains, scores or generates with.

    states: number format of the optimizer states.
    """
    if engine.library == "Megatron" and not shape.family.megatron:
        known = ", ".join(name for name, family in FAMILIES.items() if family.megatron)
        message = f"Megatron does not know the family of {engine.path}; it knows {known}"
        yield problem("spec.training.engine", "Megatron", message, "Write FSDP.")
    elif engine.library == "Megatron" and (shape.family.output_bias or shape.family.mlp_bias):
        message = f"layers of {engine.path} end in biases (attention_bias, mlp_bias), of which Megatron's have none yet"
        yield problem("spec.training.engine", "Megatron", message, "Write FSDP.")
    tensor = engine.mesh.tp
    heads = f"the {shape.heads} attention heads and {shape.key_heads} key heads"
    columns = f"{heads}, and the MLP's {shape.intermediate} columns,"
    if engine.kind == "Rollout":
        widths = " and ".join(f"{owner} {width} columns" for owner, width in _mlp_widths(shape).items())
        words = f"{padded_words(shape.vocabulary)} words (counted up to a multiple of {WORD_BLOCK})"
        shared = f"{heads}, {widths}, and {words},"
        yield from _size_problems("rollout.parallelism.tensor", engine, tensor, tensor_sizes(shape), shared)
    elif tensor > 1 and shape.family.fused:
        can = ", ".join(name for name, family in sorted(FAMILIES.items()) if not family.fused)
        message = f"{engine.path} keeps queries, keys and values in one matrix, which FSDP does not split"
        fix = f"Write 1, with training.parallelism.context to share its sequences, or train one of {can}."
        yield problem("spec.training.parallelism.tensor", tensor, message, fix)
    else:
        yield from _size_problems("training.parallelism.tensor", engine, tensor, split_sizes(shape), columns)
        if states == "Int8" and engine.trainable:
            yield from _block_problems(engine, shape)
    if engine.mesh.ep > 1:
        yield from _expert_problems(engine, shape)
    if engine.mesh.pp > 1:
        yield from pipeline_stage_problems(engine, shape)


def pipeline_stage_problems(engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    """Problems of a model that is split into pipeline stages."""
    if (num_pipeline_stages := engine.mesh.pp) > shape.layers:
        message = f"{num_pipeline_stages} stages of the {shape.layers} layers of {engine.path} leave some without any"
        yield problem(
            "spec.training.parallelism.pipeline", num_pipeline_stages, message, f"Write at most {shape.layers}."
        )


def _block_problems(engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    """Problems of Int8 means, whose blocks lie within the columns of each worker."""
    widths = (shape.query_width, shape.intermediate)
    for width in widths:
        if not _has_whole_blocks(width, engine.mesh.tp):
            message = (
                f"rows of {width} numbers of {engine.path} are kept in blocks of {LEAST_STATE_BLOCK}, of which workers "
                f"that split them in {engine.mesh.tp} do not get whole ones"
            )
            sizes = [
                split_size
                for split_size in split_sizes(shape)
                if all(_has_whole_blocks(one, split_size) for one in widths)
            ]
            fix = f"Write BFloat16 or Float32, or one of {', '.join(map(str, sizes))} for training.parallelism.tensor."
            yield problem("spec.training.optimizer.states", "Int8", message, fix)
            return


def _has_whole_blocks(width: int, tensor: int) -> bool:
    """Whether a part of a row has, where the whole row has blocks."""
    return width % LEAST_STATE_BLOCK > 0 or width // tensor % LEAST_STATE_BLOCK == 0


def _expert_problems(engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    if shape.experts is None:
        message = f"{engine.path} has no experts to share"
        yield problem("spec.training.parallelism.expert", engine.mesh.ep, message, "Write 1, or leave it out.")
    else:
        shared = f"the {shape.experts.count} experts of a layer"
        yield from _size_problems(
            "training.parallelism.expert", engine, engine.mesh.ep, divisors(shape.experts.count), shared
        )


def _size_problems(field: str, engine: EnginePlan, size: int, sizes: tuple[int, ...], shared: str) -> Iterator[Problem]:
    if size not in sizes:
        message = f"so many workers cannot share {shared} of {engine.path} equally"
        yield problem(f"spec.{field}", size, message, f"Write one of {', '.join(map(str, sizes))}.")


def tensor_sizes(shape: ModelShape) -> tuple[int, ...]:
    """How many workers may share the layers of a model that generates: each gets whole attention heads, the key heads
    that they ask, which are its own or one that it shares with others, columns of the MLP, or of every expert, and
    words."""
    sizes = divisors(gcd(shape.heads, padded_words(shape.vocabulary), *_mlp_widths(shape).values()))
    return tuple(size for size in sizes if shape.key_heads % size == 0 or size % shape.key_heads == 0)


def _mlp_widths(shape: ModelShape) -> dict[str, int]:
    """Columns of what the layers have behind attention, by whose they are."""
    result = {} if shape.experts is None else {"an expert's": shape.experts.width}
    has_mlps = shape.experts is None or shape.experts.dense_layers > 0
    return result | ({"the MLP's": shape.intermediate} if has_mlps else {})


def split_sizes(shape: ModelShape) -> tuple[int, ...]:
    """How many workers may split the matrices of a model that is trained: each gets whole heads, and key heads of its
    own."""
    return (1,) if shape.family.fused else divisors(gcd(shape.heads, shape.key_heads, shape.intermediate))


def divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, number + 1) if number % size == 0)
