"""How a model is spread over ranks: FSDP units of decoder layers, one for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from rljob_worker.engines.deterministic import recompute_contexts
from rljob_worker.engines.fsdp.compiling import compile_layers
from rljob_worker.engines.fsdp.settings import DTYPES, TrainSettings
from rljob_worker.engines.models import decoder_layers, give_memory
from rljob_worker.engines.models.vision import run_tower_always, tower_of
from rljob_worker.engines.parallel.mesh import single_rank_group


def shard(
    model: torch.nn.Module,
    settings: TrainSettings,
    device: torch.device,
    group: dist.ProcessGroup | None,
    apart: Sequence[torch.nn.Module] = (),
    group_apart: dist.ProcessGroup | None = None,
    replicas: dist.ProcessGroup | None = None,
) -> torch.nn.Module:
    """Shard the model onto its device, where it is never whole: a layer at a time, or with memory for shards only where
    its parameters have none yet. On a single rank that computes in its weights' dtype it is only moved. Modules that
    lie `apart` have the same weights on other ranks, `group_apart`. `replicas` are ranks with the same shards, which
    add up gradients. Offloaded parameters stay in the memory of the host, and each pass brings them a unit at a time.
    While one unit computes FSDP fetches the next, in both passes."""
    layers, blocks = list(decoder_layers(model)), tower_blocks(model)
    is_tower_trained = any(parameter.requires_grad for block in blocks for parameter in block.parameters())
    if settings.compile:
        compile_layers(model)
    if settings.activation_checkpointing and settings.trainable:
        recompute_in_backward([*layers, *blocks] if is_tower_trained else layers)
    alone = world_size(group) == world_size(group_apart) == world_size(replicas) == 1
    if is_tower_trained or not alone:
        run_tower_always(model)
    if alone and not settings.is_mixed and not settings.offload_parameters:
        give_memory(model, device)
        return model
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[settings.precision] if settings.is_mixed else None,
        reduce_dtype=settings.master_dtype if settings.is_mixed else None,
    )
    mesh = _device_mesh(group or single_rank_group(), replicas, device)
    # a group has threads of its own, and most models need no second one
    mesh_apart = _device_mesh(group_apart or single_rank_group(), replicas, device) if apart else mesh
    # host memory is cheaper than the loopback: on CPU weights of a model that is not large stay whole between the two
    reshard = device.type != "cpu" or not is_held(model, settings)
    offload, home = OffloadPolicy(), device
    if settings.offload_parameters:
        offload, home = CPUOffloadPolicy(pin_memory=device.type != "cpu"), torch.device("cpu")
    for module in apart:
        fully_shard(module, mesh=mesh_apart, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    for unit in (
        *layer_units(model, blocks, settings.min_unit_bytes),
        *layer_units(model, layers, settings.min_unit_bytes),
    ):
        fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
    for unit in fsdp_units(model):
        unit.set_gradient_divide_factor(1.0)  # losses carry global denominators: gradients are sums, not means
        unit.set_force_sum_reduction_for_comms(True)
    give_memory(model, device, parameters_on=home)
    return model


def freeze_tower(model: torch.nn.Module, settings: TrainSettings) -> bool:
    """Leave a vision tower without gradients unless it has a learning rate; whether it has one and is frozen."""
    tower = tower_of(model)
    if tower is None or settings.vision_learning_rate is not None:
        return False
    tower.requires_grad_(False)
    return True


def tower_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a vision tower; none of a model that does not see."""
    tower = tower_of(model)
    return [] if tower is None else list(tower.blocks)


def _device_mesh(shards: dist.ProcessGroup, replicas: dist.ProcessGroup | None, device: torch.device) -> DeviceMesh:
    """The mesh of the ranks that shard weights; with replicas a line of them for each, all ranks as far from each
    other."""
    if replicas is None:
        return DeviceMesh.from_group(shards, device.type)
    own, others = (dist.get_process_group_ranks(group) for group in (shards, replicas))
    lines = [[rank + other - dist.get_rank() for rank in own] for other in others]
    return DeviceMesh.from_group([replicas, shards], device.type, lines, mesh_dim_names=("replicas", "shards"))


def layer_units(model: torch.nn.Module, layers: list[torch.nn.Module], min_bytes: int) -> list[list[torch.nn.Module]]:
    """Consecutive layers that are gathered together: of at least `min_bytes`, so that a collective is worth its start.
    None for a model smaller than that: the root holds it all."""
    if _nbytes(model) < min_bytes:
        return []
    units: list[list[torch.nn.Module]] = []
    for layer in layers:
        if units and sum(map(_nbytes, units[-1])) < min_bytes:
            units[-1].append(layer)
        else:
            units.append([layer])
    return units


def _nbytes(module: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def recompute_in_backward(layers: list[torch.nn.Module]) -> None:
    """Keep only the inputs of these layers; the backward pass runs their forward again."""
    for layer in layers:
        layer.forward = _Recomputed(layer.forward)


class _Recomputed:
    """A forward under activation checkpointing. Dropout is off, so no random state needs to be put back."""

    def __init__(self, forward: object) -> None:
        self._forward = forward

    def __call__(self, *args: object, **kwargs: object) -> object:
        return checkpoint(
            self._forward,
            *args,
            use_reentrant=False,
            context_fn=recompute_contexts,
            preserve_rng_state=False,
            **kwargs,
        )


def fsdp_units(model: torch.nn.Module) -> list[FSDPModule]:
    """Every FSDP unit, the root included; none when the model is not sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def is_held(model: torch.nn.Module, settings: TrainSettings) -> bool:
    """Whether a model may be whole on every rank between micro-batches."""
    return _nbytes(model) <= settings.held_bytes


def hold_gradients(model: torch.nn.Module, *, held: bool, last: bool, keep_weights: bool) -> None:
    """Gradient accumulation: called before each micro-batch. held: gradients add up locally until the last one reduces
    them, and weights may stay gathered until then; else every micro-batch reduces its own onto the shards. Replicas add
    up theirs after the last."""
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last or not held)
        model.set_requires_gradient_sync(last or not held)
        model.set_requires_all_reduce(last)
        model.set_reshard_after_backward(last or not (held and keep_weights))


def free_gathered_weights(model: torch.nn.Module) -> None:
    """After a forward without backward: back to shards."""
    for unit in fsdp_units(model):
        unit.reshard()


def world_size(group: dist.ProcessGroup | None) -> int:
    return 1 if group is None else group.size()
