"""Can the library that generates do what the job asks of it?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.temperatures import TEMPERATURES
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.resolution import place
from rljob_api.v1alpha1 import EngineOptions
from rljob_api.vocabulary.problem import Problem

CPU_BLOCK = 32
"""Tokens that VLLM's attention on CPUs reads at a time."""
_PATH = "spec.rollout.engineOptions"


def check_engine_options(subject: Subject) -> Iterator[Problem]:
    """Options that the engine has, where it runs."""
    rollout = subject.spec.rollout
    options = rollout.engine_options
    if rollout.engine == "VLLM":
        if "cpu" in _devices(subject):
            yield from _vllm_on_cpus(options, subject.spec.longest_row)
    else:
        for name, info in type(options).model_fields.items():
            if (found := getattr(options, name)) is not None and name != "enforce_eager":
                message = f"rollout.engine {rollout.engine} has no such option"
                yield problem(f"{_PATH}.{info.alias}", found, message, "Leave it out, or write rollout.engine: VLLM.")
        if options.enforce_eager is False and _devices(subject) - {"cuda"}:
            message = "graphs are recorded on CUDA devices only"
            yield problem(f"{_PATH}.enforceEager", options.enforce_eager, message, "Leave it out.")


def _vllm_on_cpus(options: EngineOptions, longest_row: int) -> Iterator[Problem]:
    if options.block_size is not None and options.block_size % CPU_BLOCK:
        message = f"VLLM's blocks on CPUs are multiples of {CPU_BLOCK} tokens"
        more = -(-options.block_size // CPU_BLOCK) * CPU_BLOCK
        yield problem(f"{_PATH}.blockSize", options.block_size, message, f"Write {more}, or leave it out.")
    if options.max_batched_tokens is not None and options.max_batched_tokens < longest_row:
        message = f"on CPUs VLLM computes prompts whole, and rows have up to {longest_row} tokens"
        fix = f"Write {longest_row} or more, or leave it out."
        yield problem(f"{_PATH}.maxBatchedTokens", options.max_batched_tokens, message, fix)
    for field, found in (
        ("batchInvariant", options.batch_invariant),
        ("speculativeTokens", options.speculative_tokens),
    ):
        if found:
            yield problem(f"{_PATH}.{field}", found, "VLLM has this on devices only", "Leave it out.")


def check_engine_parallelism(subject: Subject) -> Iterator[Problem]:
    """Whether the engine can spread a copy over workers."""
    rollout = subject.spec.rollout
    if rollout.engine != "VLLM" and rollout.parallelism.tensor > 1:
        message = f"rollout.engine {rollout.engine} generates with a whole copy of the model on every worker"
        fix = "Write 1, or rollout.engine: VLLM."
        yield problem("spec.rollout.parallelism.tensor", rollout.parallelism.tensor, message, fix)


def check_engine_routes(subject: Subject) -> Iterator[Problem]:
    """Whether the engine says which experts computed a token."""
    spec = subject.spec
    if spec.training.router_replay == "Rollout" and spec.rollout.engine != "Transformers":
        message = (
            f"rollout.engine {spec.rollout.engine} does not say here which experts computed a token: its model runner "
            "for CPUs cannot, and the one for devices was not tried (docs/engines.md)"
        )
        fix = "Write None, or rollout.engine: Transformers."
        yield problem("spec.training.routerReplay", "Rollout", message, fix)


def check_engine_sampling(subject: Subject) -> Iterator[Problem]:
    """Temperatures and number formats that the engine has."""
    spec = subject.spec
    engine = spec.rollout.engine
    known, other = TEMPERATURES[engine], "" if engine == "Transformers" else ", or rollout.engine: Transformers"
    temperatures = (("rollout", spec.rollout.temperature), ("validation", spec.validation.temperature))
    for section, temperature in temperatures:
        path = f"spec.{section}.temperature"
        if temperature > known.highest:
            message = f"{engine} samples at temperatures up to {known.highest:g}"
            yield problem(path, temperature, message, f"Write less{other}.")
        elif not known.have(temperature):
            message = f"{engine} samples at temperatures from {known.lowest:g} on: {known.below}"
            yield problem(path, temperature, message, f"Write {known.lowest:g} or more{other}.")
    if engine == "VLLM" and spec.training.precision == "Float64":
        fix = "Write Float32 or BFloat16, or rollout.engine: Transformers."
        yield problem("spec.training.precision", "Float64", "VLLM generates in Float32 and BFloat16 only", fix)


def _devices(subject: Subject) -> set[str]:
    """Device types of the groups that generate."""
    placed = place(subject.resolution)
    homes = {placed[name] for name, stage in subject.resolution.stages.items() if stage.generates}
    profiles = {group.name: group.accelerator.profile for group in subject.spec.worker_groups}
    known = (subject.profiles.get(profiles[home]) for home in homes if home in profiles)
    return {profile.device for profile in known if profile is not None}
