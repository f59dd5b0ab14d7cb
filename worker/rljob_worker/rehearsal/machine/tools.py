"""What a plan needs besides torch on the machine where its workers run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Container, Iterator, Mapping

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.planning.plan import Plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.data_url import HUB, scheme_of
from rljob_api.vocabulary.problem import Problem
from rljob_worker.devices.compiler import missing_for_compiling
from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.finding import Finding


def tool_findings(
    plan: Plan,
    groups: Container[str],
    environment: Mapping[str, str],
    is_there: Callable[[str], object] = importlib.util.find_spec,
) -> Iterator[Finding]:
    """What is missing here. groups: whose workers run here. environment: of a worker. is_there: whether a Python
    package of this name is."""
    if plan.spec.training.compile and (lacking := missing_for_compiling(environment)):
        message = f"torch compiles layers with {lacking}, which is not installed here"
        fix = "Install it, or name another C++ compiler in the variable CXX, or write false."
        yield Finding(Problem("spec.training.compile", "true", message, fix))
    if plan.spec.training.engine == "Megatron" and not is_there("megatron"):
        message = "its layers are Megatron-core's, which is not installed here"
        fix = "`pip install 'rljob[megatron]'` brings it to the workers' environment or image; or write FSDP."
        yield Finding(Problem("spec.training.engine", "Megatron", message, fix))
    generating = {engine.library for engine in plan.engines if engine.kind == "Rollout" and engine.group in groups}
    for name in sorted(generating):
        needs = ROLLOUT_ENGINES[name].needs
        if needs is not None and not is_there(needs.module):
            message = f"it samples responses with the Python package {needs.module}, which is not installed here"
            yield Finding(Problem("spec.rollout.engine", name, message, needs.remedy))
    for i, model in enumerate(plan.spec.models):
        if model.adapter is not None and not is_there("peft"):
            message = "adapters are peft's, which is not installed here"
            fix = "`pip install 'rljob[adapters]'` brings it to the workers' environment or image."
            yield Finding(Problem(f"spec.models[{i}].adapter", f"rank {model.adapter.rank}", message, fix))
    if not is_there("obstore"):
        yield from (_unreadable(path, url) for path, url in _in_stores(plan.spec))


def check_serve(plan: Plan, is_there: Callable[[str], object] = importlib.util.find_spec) -> None:
    """InvalidJob, with the fix, where the job has services and Ray Serve is not in this environment."""
    missing = [package for package in ("ray", "starlette") if not is_there(package)] if plan.spec.services else []
    if missing:
        raise InvalidJob(
            f"services run on Ray Serve, and Python packages of it are not installed: {', '.join(missing)}; "
            "`pip install 'rljob[serve]'` brings them"
        )


def _in_stores(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Where they stand in the job, and URLs."""
    named = [(f"models[{i}].path", model.path) for i, model in enumerate(spec.models)]
    for kind, sources in (("train", spec.data.train), ("validation", spec.data.validation)):
        named += [(f"data.{kind}[{i}].path", source.path) for i, source in enumerate(sources)]
    if spec.object_store is not None:
        named.append(("storage.objectStore.uri", spec.object_store.uri))
    return ((f"spec.{path}", url) for path, url in named if scheme_of(url) not in (None, HUB))


def _unreadable(path: str, url: str) -> Finding:
    message = "what is in stores and on the web goes through obstore, which is not installed here"
    fix = "`pip install 'rljob[objectstore]'` brings it to the workers' environment or image."
    return Finding(Problem(path, url, message, fix))
