"""Is everything that the job asks for built?  What is not is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rljob_api.checks.subject import Subject, problem
from rljob_api.vocabulary.problem import Problem

UNBUILT = {
    "training.engine": "Megatron with training.compile or an adapter",
    "training.parallelism.pipeline": "any but 1 with training.engine FSDP",
    "training.parallelism.expert": "with an adapter, any but 1",
    "training.compile": "true with a training.parallelism.expert above 1",
    "models[].adapter.dropout": "any but 0",
}
"""Values that the types take and this version refuses, by their place in the spec: for the reference."""


def check_unsupported(subject: Subject) -> Iterator[Problem]:
    """Settings that mean something this version cannot do."""
    for path, result, built, fix in _settings(subject):
        if not built:
            yield problem(f"spec.{path}", result, "this is not built yet", fix)


def _settings(subject: Subject) -> Iterator[tuple[str, Any, bool, str]]:
    """(path, value, whether it is built, what to write) of every setting that is ahead of the code."""
    spec = subject.spec
    training = spec.training
    has_adapter = any(model.adapter is not None for model in spec.models)
    fix = "Write FSDP, or leave out models[].adapter and training.compile."
    built = training.engine == "FSDP" or not (has_adapter or training.compile)
    yield "training.engine", training.engine, built, fix
    experts = training.parallelism.expert if has_adapter else 1
    fix = "Write 1, or train the whole model: experts have no adapters."
    yield "training.parallelism.expert", experts, experts == 1, fix
    stages, fix = training.parallelism.pipeline, "Write 1, or training.engine: Megatron."
    yield "training.parallelism.pipeline", stages, stages == 1 or training.engine == "Megatron", fix
    built = not (training.compile and training.parallelism.expert > 1)
    yield "training.compile", training.compile, built, "Write false: models with experts are not compiled."
    for i, model in enumerate(spec.models):
        dropout = 0.0 if model.adapter is None else model.adapter.dropout
        yield f"models[{i}].adapter.dropout", dropout, dropout == 0, "Write 0, or leave it out."
