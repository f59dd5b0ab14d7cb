"""What a plan needs beside torch on the machine where its workers run."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Container, Iterator, Mapping

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding

COMPILER = "g++"
"""Where the variable CXX names no other: torch's choice."""


def tool_findings(
    plan: Plan,
    groups: Container[str],
    environment: Mapping[str, str],
    is_there: Callable[[str], object] = importlib.util.find_spec,
) -> Iterator[Finding]:
    """What is missing here. groups: whose workers run here. environment: of a worker. is_there: whether a Python
    package of this name is."""
    compiler = environment.get("CXX", COMPILER)
    if plan.spec.training.compile and shutil.which(compiler, path=environment.get("PATH")) is None:
        message = f"torch compiles layers with {compiler}, which is not installed here"
        fix = "Install g++, or name another C++ compiler in the variable CXX, or write false."
        yield Finding(Problem("spec.training.compile", "true", message, fix))
    if plan.spec.training.engine == "Megatron" and not is_there("megatron"):
        message = "its layers are Megatron-core's, which is not installed here"
        fix = "`pip install 'rljob[megatron]'` brings it to the workers' environment or image; or write FSDP."
        yield Finding(Problem("spec.training.engine", "Megatron", message, fix))
    generates = any(engine.library == "VLLM" and engine.group in groups for engine in plan.engines)
    if generates and not is_there("vllm"):
        message = "responses are sampled by vLLM, which is not installed here"
        fix = (
            "`make vllm` in a checkout makes an environment for CPUs, whose rljob runs such jobs (docs/engines.md); or "
            "write Transformers."
        )
        yield Finding(Problem("spec.rollout.engine", "VLLM", message, fix))
    for i, model in enumerate(plan.spec.models):
        if model.adapter is not None and not is_there("peft"):
            message = "adapters are peft's, which is not installed here"
            fix = "`pip install 'rljob[adapters]'` brings it to the workers' environment or image."
            yield Finding(Problem(f"spec.models[{i}].adapter", f"rank {model.adapter.rank}", message, fix))
