"""Libraries that generate, by the name that a job writes in `rollout.engine`: all that checks, planner, operator,
launcher and workers ask of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.catalogue.declarations import Declarations
from rljob_api.catalogue.needed_packages import NeededPackage

if TYPE_CHECKING:  # a launcher reads this, and does without the types of a job, which take longer to import than itself
    from rljob_api.v1alpha1 import EngineOptions, Precision


@dataclass(frozen=True, slots=True)
class Temperatures:
    """0, which takes the most likely token, and all between two bounds."""

    lowest: float
    highest: float
    below: str
    """What would happen below the lowest."""

    def have(self, temperature: float) -> bool:
        return temperature == 0 or self.lowest <= temperature <= self.highest


@dataclass(frozen=True, slots=True)
class RefusedOption:
    """A value of `rollout.engineOptions` that an engine does not take where it runs."""

    option: str
    """As Python spells it."""
    message: str
    fix: str


OptionCheck = Callable[["EngineOptions", Collection[str], int], Iterator[RefusedOption]]
"""From options, the device types of the workers that generate and the longest row, in tokens."""


def takes_all(options: EngineOptions, devices: Collection[str], longest_row: int) -> Iterator[RefusedOption]:
    """The `OptionCheck` of an engine that takes its options everywhere."""
    return iter(())


@dataclass(frozen=True, slots=True)
class DeclaredRolloutEngine:
    """What an engine can do, what it needs, and who builds it."""

    name: str
    builder: str
    """`module:function` of the worker, a `RolloutBuilder`: see rljob_worker.engines.registry."""
    temperatures: Temperatures
    precisions: tuple[Precision, ...] = ("Float32", "BFloat16", "Float64")
    """Number formats that it generates in."""
    options: tuple[str, ...] = ()
    """Fields of `rollout.engineOptions` that it has, as Python spells them."""
    refused_options: OptionCheck = takes_all
    continues: bool = True
    """Whether a request may bring tokens that its response has already, as `rollout.partial` asks."""
    spreads: bool = False
    """Whether one copy of the model may lie on several workers of a pod: `rollout.parallelism.tensor`."""
    sees: bool = False
    """Whether its prompts may have pictures, as `data.imagesColumn` asks."""
    gives_routes: bool = False
    """Whether it says which experts computed a token, as `training.routerReplay` asks."""
    gives_top_log_probs: bool = False
    """Whether it gives likely tokens beside those that it draws, as `top_logprobs` of an agent's call asks."""
    why_no_routes: str = ""
    records_experts: bool = True
    """Whether `engineOptions.enforceEager: false` is for models with experts, too."""
    borrows_weights: bool = False
    """Whether it generates with the weights of the engine that trains them in the same process, where those are whole:
    a plan then counts no copy."""
    stays_awake_on_cpus: bool = False
    """Whether `sleep` gives back memory of accelerators only: a plan on CPUs then counts its copy beside training."""
    begins_on_host: bool = False
    """Whether a worker of an accelerator has a layer of the model, and what is outside of the layers, in the memory of
    its host while it starts, which a plan counts."""
    reserves_memory: bool = False
    """Whether it takes `rollout.memoryFraction` of an accelerator when it starts, however little its rows need."""
    is_remote: bool = False
    """Whether it generates in `rollout.server`: a plan counts neither weights nor keys of it."""
    needs: NeededPackage | None = None
    image: str | None = None
    """Image of workers that generate with it: a reference, or its name in the operator's settings (`worker_vllm`),
    with `_cpu` behind that for workers on CPUs. None: that of all workers."""
    preload: str | None = None
    """Module that is imported once for all workers of a pod on CPUs before they are forked."""


def _of_transformers(options: EngineOptions, devices: Collection[str], longest_row: int) -> Iterator[RefusedOption]:
    if options.enforce_eager is False and set(devices) - {"cuda"}:
        yield RefusedOption("enforce_eager", "graphs are recorded on CUDA devices only", "Leave it out.")


VLLM_CPU_BLOCK = 32
"""Tokens that VLLM's attention on CPUs reads at a time."""


def _of_vllm(options: EngineOptions, devices: Collection[str], longest_row: int) -> Iterator[RefusedOption]:
    if "cpu" not in devices:
        return
    if options.block_size is not None and options.block_size % VLLM_CPU_BLOCK:
        message = f"VLLM's blocks on CPUs are multiples of {VLLM_CPU_BLOCK} tokens"
        more = -(-options.block_size // VLLM_CPU_BLOCK) * VLLM_CPU_BLOCK
        yield RefusedOption("block_size", message, f"Write {more}, or leave it out.")
    if options.max_batched_tokens is not None and options.max_batched_tokens < longest_row:
        message = f"on CPUs VLLM computes prompts whole, and rows have up to {longest_row} tokens"
        yield RefusedOption("max_batched_tokens", message, f"Write {longest_row} or more, or leave it out.")
    for option in ("batch_invariant", "speculative_tokens"):
        if getattr(options, option):
            yield RefusedOption(option, "VLLM has this on devices only", "Leave it out.")


ROLLOUT_ENGINES = Declarations(
    "rollout engine",
    "rljob.rollout_engines",
    DeclaredRolloutEngine,
    DeclaredRolloutEngine(
        "Transformers",
        "rljob_worker.engines.rollout_builders:transformers_engine",
        Temperatures(1e-6, 1e6, "logits divided by less may be no finite Float32"),
        options=("enforce_eager",),
        refused_options=_of_transformers,
        sees=True,
        gives_routes=True,
        gives_top_log_probs=True,
        records_experts=False,
        borrows_weights=True,
    ),
    # VLLM itself refuses temperatures above its highest, and raises what is below its lowest to it
    DeclaredRolloutEngine(
        "VLLM",
        "rljob_worker.engines.rollout_builders:vllm_engine",
        Temperatures(0.01, 2.0, "it would sample at 0.01, and log-probabilities would be of that temperature"),
        precisions=("Float32", "BFloat16"),
        sees=True,
        gives_top_log_probs=True,
        options=(
            "block_size",
            "max_batched_tokens",
            "prefix_caching",
            "enforce_eager",
            "batch_invariant",
            "speculative_tokens",
        ),
        refused_options=_of_vllm,
        spreads=True,
        reserves_memory=True,
        begins_on_host=True,
        stays_awake_on_cpus=True,
        why_no_routes="its model runner for CPUs cannot, and the one for devices was not tried (docs/engines.md)",
        needs=NeededPackage(
            "vllm",
            "`make vllm` in a checkout makes an environment for CPUs, whose rljob runs such jobs (docs/engines.md); or "
            "write Transformers.",
        ),
        image="worker_vllm",
        preload="rljob_worker.runtime.preload_vllm",
    ),
    # the narrower of what SGLang and vLLM sample at
    DeclaredRolloutEngine(
        "HTTP",
        "rljob_worker.engines.rollout_builders:http_engine",
        Temperatures(0.01, 2.0, "vLLM would sample at 0.01, and log-probabilities would be of that temperature"),
        precisions=("Float32", "BFloat16"),
        is_remote=True,
        why_no_routes="their form differs from server to server",
    ),
)
