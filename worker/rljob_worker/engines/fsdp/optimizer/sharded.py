"""An optimizer over this rank's shards, with the learning-rate schedule and the clip by the global norm.

Its rule sees the local tensors under FSDP's distributed ones: an update is element-wise, and plain tensors are
stepped without a dispatch per parameter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.memory.sizes import BUCKET_BYTES, LEAST_STATE_BLOCK
from rljob_worker.devices.copies import wait_for_copies
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.fsdp.optimizer.host_offload import HostOffload
from rljob_worker.engines.fsdp.optimizer.rule import UpdateRule, rule_of
from rljob_worker.engines.fsdp.optimizer.states import KeptState, block_of, states_of
from rljob_worker.engines.fsdp.settings import TrainSettings, scheduled_rate_factor
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.models.vision import is_of_tower
from rljob_worker.engines.parallel.shards import laid_out_like, local_part
from rljob_worker.engines.parallel.split import may_split_columns
from rljob_worker.engines.parallel.tensor import add_up

log = logging.getLogger(__name__)

Named = dict[str, torch.nn.Parameter]

NUM_STEPS = "num_steps"
"""Next to the tensors of the optimizer, which are called after parameters: how many steps it has made."""


@dataclass(frozen=True, slots=True)
class OptimizerBucket:
    """Parameters that are stepped together, and their states."""

    kept: dict[str, dict[str, KeptState]]
    """By parameter."""
    rule: UpdateRule
    states: HostOffload
    rate: float
    """Peak of their learning rate."""


class ShardedOptimizer:
    """Optimizer, schedule and clipping of one model's parameters."""

    def __init__(
        self, parameters: Named, settings: TrainSettings, parts: Parts, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        """bucket_bytes: of the parameters whose states come from the host together."""
        self.settings = settings
        self._parts = parts
        self.parameters = parameters
        self.num_steps = 0
        self._locals = {name: torch.nn.Parameter(local_part(p.detach())) for name, p in parameters.items()}
        self._device = next(iter(self._locals.values())).device
        # states of offloaded parameters are where they are stepped
        self._offloads = settings.offload_optimizer and not settings.offload_parameters
        self.buckets: list[OptimizerBucket] = []
        for alike, rate in _by_rate(self._locals, settings):
            for named in _buckets(alike, bucket_bytes) if self._offloads else [alike]:
                self.buckets.append(_bucket(named, settings, rate))
                if self._offloads:
                    self.buckets[-1].states.sleep()

        if settings.states == "Int8":
            self._tell_float32()

    def _tell_float32(self) -> None:
        """Which matrices an optimizer in Int8 leaves in Float32, and how much of the model that is."""
        sizes = {name: local.numel() for name, local in self._locals.items()}
        apart = [
            name
            for name, local in self._locals.items()
            if local.ndim > 1 and block_of(local.shape, by_columns=may_split_columns(name)) is None
        ]
        if apart:
            log.warning(
                "training.optimizer.states Int8: %d %% of the weights keep them in Float32, %d matrices whose rows do "
                "not divide into blocks of %d numbers, such as %s with rows of %d; BFloat16 takes all of them",
                100 * sum(sizes[name] for name in apart) // max(1, sum(sizes.values())),
                len(apart),
                LEAST_STATE_BLOCK,
                apart[0],
                math.prod(self._locals[apart[0]].shape[1:]),
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step; that of a vision tower follows the same schedule."""
        return self.settings.learning_rate * scheduled_rate_factor(self.settings, self.num_steps)

    @property
    def held_bytes(self) -> int:
        """What `sleep` would free of an accelerator now."""
        return 0 if self._device.type == "cpu" else sum(bucket.states.held_bytes for bucket in self.buckets)

    def sleep(self) -> None:
        """Let the states wait in the memory of the host; gradients are gone since the last step. `step` wakes them."""
        for bucket in self.buckets:
            bucket.states.sleep()
        wait_for_copies([self._device])

    def step(self, agreement: Agreement) -> tuple[float, bool]:
        """Clip and step from the gradients that FSDP left. Returns the norm before clipping and whether the step was
        taken; it is not when the norm is not finite, on every rank alike, since the norm is global."""
        for name, local in self._locals.items():
            gradient = self.parameters[name].grad
            local.grad = None if gradient is None else local_part(gradient)
        split, whole = self._gradients(is_split=True), self._gradients(is_split=False)
        if self._parts.tensor_group is not None:
            # each replica by itself, of the same numbers: weights stay the same in all as long as the backend adds them
            # in the same order on each host, which gloo does, and NCCL on hosts that are alike
            add_up(list(whole.values()), self._parts.tensor_group, self._parts.device)
        if self._parts.pipeline_stages is not None:
            self._parts.pipeline_stages.add_up(whole, self._parts.device)
        counted = [gradient for name, gradient in whole.items() if self._parts.speaks_for(name)]
        norm = agreement.gradient_norm(counted, list(split.values()))
        if math.isfinite(norm):
            if norm > self.settings.max_grad_norm:
                torch._foreach_mul_([*whole.values(), *split.values()], self.settings.max_grad_norm / norm)
            self._step()
        else:
            self._tell_skipped()
        self.clear()
        return norm, math.isfinite(norm)

    def _tell_skipped(self) -> None:
        """Where in this rank's part gradients are not finite. On the way back from the loss all that follow are not
        either: it began at the last of these parameters, or in the loss where all are."""
        gradients = {name: local.grad for name, local in self._locals.items() if local.grad is not None}
        broken = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        if broken:
            log.warning(
                "optimizer step %d is skipped: gradients of %d of %d parameters are not finite, the last is that of %s",
                self.num_steps + 1,
                len(broken),
                len(gradients),
                broken[-1],
            )

    def _step(self) -> None:
        """A bucket at a time, where states wait on the host."""
        factor = scheduled_rate_factor(self.settings, self.num_steps)
        for bucket in self.buckets:
            bucket.states.wake()
            bucket.rule.step(bucket.rate * factor, self.num_steps + 1)
            if self._offloads:
                bucket.states.sleep()
        if self._offloads:
            wait_for_copies([self._device])
        self.num_steps += 1

    def _gradients(self, *, is_split: bool) -> dict[str, torch.Tensor]:
        """Gradients of this rank's part of the parameters that ranks split, or of those that each of them has whole."""
        split = self._parts.split
        return {
            name: local.grad
            for name, local in self._locals.items()
            if local.grad is not None and is_split == (split.share(name) is not None)
        }

    def clear(self) -> None:
        """Drop all gradients."""
        for name, local in self._locals.items():
            local.grad = self.parameters[name].grad = None

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the optimizer by `parameter.name`, distributed as the parameters are, and the number of steps
        taken. They are where the states are now, asleep or awake, and share memory with them."""
        tensors: dict[str, torch.Tensor] = {NUM_STEPS: torch.tensor(self.num_steps)}
        for bucket in self.buckets:
            for name, states in bucket.kept.items():
                for key, state in states.items():
                    for suffix, tensor in state.kept.items():
                        own = laid_out_like(self.parameters[name], bucket.states.now(tensor))
                        tensors[f"{name}.{key}{suffix}"] = self._parts.placed(name, own)
        return tensors

    def set_num_steps(self, num_steps: int) -> None:
        """After the tensors of `state` were filled in place: go on from that step."""
        self.num_steps = num_steps


def _buckets(parameters: Named, limit: int) -> Iterator[Named]:
    """In order, of up to `limit` bytes together; a larger one is alone."""
    bucket: Named = {}
    for name, parameter in parameters.items():
        if bucket and sum(item.nbytes for item in bucket.values()) + parameter.nbytes > limit:
            yield bucket
            bucket = {}
        bucket[name] = parameter
    if bucket:
        yield bucket


def _by_rate(parameters: Named, settings: TrainSettings) -> Iterator[tuple[Named, float]]:
    """Parameters with one learning rate: those of a vision tower have their own."""
    tower = {name: parameter for name, parameter in parameters.items() if is_of_tower(name)}
    rest = {name: parameter for name, parameter in parameters.items() if name not in tower}
    if rest or not tower:
        yield rest, settings.learning_rate
    if tower:
        assert settings.vision_learning_rate is not None, "a frozen tower has no optimizer"
        yield tower, settings.vision_learning_rate


def _bucket(parameters: Named, settings: TrainSettings, rate: float) -> OptimizerBucket:
    """With states of 0 from the start, so that a checkpoint has the same tensors before any step."""
    declared = OPTIMIZERS[settings.optimizer].states
    kept = {
        name: states_of(local, declared, settings.states, by_columns=may_split_columns(name))
        for name, local in parameters.items()
    }
    rule = rule_of({parameters[name]: result for name, result in kept.items()}, settings)
    tensors = (tensor for result in kept.values() for state in result.values() for tensor in state.kept.values())
    return OptimizerBucket(kept, rule, HostOffload(tensors), rate)
