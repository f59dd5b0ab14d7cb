"""One worker of a planned job on the stub device: the engines that its plan names, phase by phase.

Shapes are those of rank 0. What trains is the engine of a job, over a world in which nothing arrives: FSDP's shards and
gathered weights, layers, optimizer, chunks of logits, micro-batches of full rows. What generates is a Transformers
engine's prefill, cache and draw with one rank's part of the model; vLLM computes on no device that is not there. Of it
are its part of the weights, and the tensors of a layer that wait until all have come (`vllm.weights.reloaded_weights`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig

from rljob_api.memory.sizes import PREFILL_TOKENS
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.fsdp.settings import DTYPES
from rljob_worker.engines.models import empty_policy, give_memory
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.protocols import TokenBatch
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.sampling import sample
from rljob_worker.engines.rollout.transformers.cached_rows import CachedPrefix
from rljob_worker.engines.rollout.transformers.model_steps import ModelSteps
from rljob_worker.engines.train_builders import train_settings
from stub_device.counting import CountedBytes
from stub_device.device import DEVICE, TYPE, stub_device, without_numbers, world

MICRO_BATCHES = 3
"""Of an update, at least: the first has no gradients beside it, and the others are alike."""


FEW = (4, 6)
"""Layers that are counted in place of all."""


class PhaseBytes(NamedTuple):
    """Most bytes of one phase."""

    device: int
    host: int


class PolicyLoss:
    """What GRPO reads of a micro-batch: log-probs with a gradient, entropies as a figure."""

    columns = ("advantages",)
    mask = None
    outputs = frozenset({"log_probs", "entropy_figure"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"tokens": 1.0}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[torch.Tensor, Measured]:
        return -(tokens.log_probs * tokens.columns["advantages"]).sum(), Measured()


class OwnNumbers(Agreement):
    """What a rank knows by itself."""

    def _gather(self, numbers: list[float], group: Any) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float64)[None]


class RankAlone(FSDPEngine):
    """One rank, which hears of no other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.agreement = OwnNumbers(self.mesh)

    def _agree(self, num_runs: int, counts: dict[str, float]) -> tuple[int, dict[str, float]]:
        return num_runs, counts


def counted(plan: Plan, config: Mapping[str, Any], memory: int, rows: int, folder: Path) -> dict[str, PhaseBytes]:
    """By phase of the one group of a colocated job. config: of its model, as config.json has it; memory: bytes of the
    device; rows: that decode at once. Layers are not compiled, of which fewer bytes are kept."""
    (train,) = (engine for engine in plan.engines if engine.kind == "Train")
    (rollout,) = (engine for engine in plan.engines if engine.kind == "Rollout")
    model = empty_policy(_written(config, folder / "whole"), DTYPES["Float32"])
    part = empty_policy(_written(_part(config, rollout.mesh.tp), folder / "part"), DTYPES[plan.precision])
    with ExitStack() as stack:
        stack.enter_context(stub_device(memory))
        stack.enter_context(world(0, train.mesh.size))
        with CountedBytes() as there:
            worker = _Worker(plan, train, rollout, without_numbers(model), without_numbers(part), there)
            return dict(worker.phases(rows))


def counted_by_layers(
    plan: Plan, config: Mapping[str, Any], memory: int, rows: int, folder: Path
) -> dict[str, PhaseBytes]:
    """The same, of two models that have FEW layers of it: every further layer takes as much as those between."""
    few, more = (
        counted(plan, {**config, "num_hidden_layers": layers}, memory, rows, folder / str(layers)) for layers in FEW
    )
    left = (config["num_hidden_layers"] - FEW[1]) / (FEW[1] - FEW[0])
    return {
        name: PhaseBytes(*(round(b + left * (b - a)) for a, b in zip(few[name], more[name], strict=True)))
        for name in few
    }


class _Worker:
    def __init__(
        self,
        plan: Plan,
        train: EnginePlan,
        rollout: EnginePlan,
        model: torch.nn.Module,
        part: torch.nn.Module,
        memory: CountedBytes,
    ) -> None:
        self._plan, self._planned, self._rollout, self._memory = plan, train, rollout, memory
        mesh = build_meshes([train.mesh], 0, DEVICE, deadline_seconds=60)[train.mesh]
        settings = replace(train_settings(plan, train), compile=False)
        self._engine = RankAlone(model, settings, DEVICE, mesh)
        gc.collect()
        self._memory.restart()
        self._engine.sleep()
        give_memory(part, DEVICE)
        self._part = part.requires_grad_(False)

    def phases(self, num_rows: int) -> Iterator[tuple[str, PhaseBytes]]:
        """num_rows: that decode at once."""
        yield "load", self._most()
        for name, work in (
            ("generate", lambda: self._generate(num_rows)),
            ("train", self._train),
            ("sync", self._sync),
        ):
            self._memory.restart()
            work()
            gc.collect()
            yield name, self._most()
        self._memory.restart()
        copies = self._engine.copy_shards()
        yield "checkpoint", self._most()
        del copies

    def _most(self) -> PhaseBytes:
        return PhaseBytes(self._memory.most[TYPE], self._memory.most["cpu"])

    def _generate(self, num_rows: int) -> None:
        """The longest rows there are; prompts of one forward, and one draw."""
        spec, config = self._plan.spec, self._part.config
        steps = ModelSteps(self._part, None, None)
        prompt, size = spec.data.max_prompt_tokens, spec.algorithm.group_size
        prompts = min(ceil(num_rows / size), max(1, PREFILL_TOKENS // prompt))
        with torch.no_grad():
            cache = steps.new_cache()
            cache.restart(num_rows, prompt, spec.longest_row)
            packed = Column.ragged([np.zeros(prompt, np.int64)] * prompts)
            rows = np.arange(min(num_rows, prompts * size)) // size
            steps.prefill(cache, packed, rows, [CachedPrefix()] * prompts)
            words = config.vocab_size * self._rollout.mesh.tp
            logits = torch.empty(num_rows, words, dtype=DTYPES[self._plan.precision], device=DEVICE)
            sample(logits, Sampling(seed=1), np.zeros(num_rows, np.uint64), np.zeros(num_rows, np.int64))

    def _train(self) -> None:
        """Two updates, of which the second has everything that the first made."""
        with _without_memory(self._part):
            for _ in range(2):
                self._engine.update(_full_rows(self._plan, self._planned), PolicyLoss())

    def _sync(self) -> None:
        self._engine.sleep()
        self._memory.restart()
        waiting, layer = [], ""
        with torch.no_grad():
            for name, tensor in self._engine.weights():
                if (of := _layer_of(name)) != layer:
                    waiting, layer = [], of
                waiting.append(tensor.to(DTYPES[self._plan.precision], copy=True))


def _layer_of(name: str) -> str:
    before, found, number = name.partition(".layers.")
    return before + found + number.partition(".")[0] if found else name


@contextmanager
def _without_memory(model: torch.nn.Module) -> Iterator[None]:
    sizes = [(item.untyped_storage(), item.nbytes) for item in model.parameters()]
    for storage, _ in sizes:
        storage.resize_(0)
    yield
    for storage, size in sizes:
        storage.resize_(size)


def _full_rows(plan: Plan, engine: EnginePlan) -> Batch:
    """For MICRO_BATCHES, in so far as an optimizer step has them: of whole groups, which share their prompts, or where
    these leave the second micro-batch all but empty each of another group, as `balance` may deal them out."""
    spec, mesh = plan.spec, engine.mesh
    pack = spec.training.tokens_per_micro_batch * mesh.cp
    prompt, response, size = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens, spec.algorithm.group_size
    rows_of_pack = max(1, (pack - prompt) // response)
    count = min(MICRO_BATCHES * rows_of_pack, ceil(spec.mini_batch_rows / mesh.dp))
    if count // size * prompt + count * response < 2 * pack:
        size = 1
    groups = np.arange(count) // size
    prompts = [np.full(prompt, 2 + group) for group in groups]
    responses = Column.ragged([np.full(response, 2)] * count)
    columns = {
        "prompt_ids": Column.ragged(prompts),
        "response_ids": responses,
        "advantages": Column.from_lengths(np.ones(count * response), responses.lengths),
    }
    return Batch.build(np.arange(count), groups, columns, np.full(count, prompt + response))


def _written(config: Mapping[str, Any], folder: Path) -> str:
    made = AutoConfig.for_model(**config)
    made.save_pretrained(folder)
    return str(folder)


def _part(config: Mapping[str, Any], tensor: int) -> dict[str, Any]:
    """What one of some ranks that split matrices, words and heads generates with; key heads while there are some."""
    split = ("num_attention_heads", "intermediate_size", "moe_intermediate_size", "vocab_size")
    own = {name: config[name] // tensor for name in split if name in config}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {**config, **own, "head_dim": width, "num_key_value_heads": max(1, config["num_key_value_heads"] // tensor)}
