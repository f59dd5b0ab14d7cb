"""From settings and a policy to an engine that generates with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.model_executor.models.registry import ModelRegistry
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.devices.memory import free_memory, free_of_driver, total_memory
from rljob_worker.engines.attention.heads import head_dim
from rljob_worker.engines.models import checkpoint_tensors
from rljob_worker.engines.models.families import sees
from rljob_worker.engines.models.policy_by_layers import LayeredPass, PolicyByLayers
from rljob_worker.engines.parallel.mesh import ProcessMesh, alone, require_world
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.limits import Limits
from rljob_worker.engines.rollout.slices import own_slices
from rljob_worker.engines.rollout.vllm.copies import executor_of, own_groups
from rljob_worker.engines.rollout.vllm.drawing import draw_by_position
from rljob_worker.engines.rollout.vllm.engine import VLLMRollout
from rljob_worker.engines.rollout.vllm.process_state import preserved_process_state
from rljob_worker.engines.rollout.vllm.settings import (
    VLLMSettings,
    cpu_cache_bytes,
    engine_arguments,
    require_block_size,
    share_of_device,
    vision_arguments,
)
from rljob_worker.engines.rollout.vllm.weights.reload_check import Probe, ReferenceAnswer, difference_from, require_near
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import InvalidJob

log = logging.getLogger(__name__)

_TRANSFORMERS = "vllm.model_executor.models.transformers"
"""Where vLLM has models that it computes with the modules of transformers."""


def start(
    settings: VLLMSettings,
    path: str,
    policy: PolicyByLayers,
    end_token_ids: tuple[int, ...],
    device: torch.device,
    vocabulary: Vocabulary | None = None,
    mesh: ProcessMesh | None = None,
    reader: PictureReader | None = None,
    frozen: Callable[[str], bool] = lambda name: False,
) -> VLLMRollout:
    """An engine with the weights of `policy`, which is read and not kept. Collective over the copy of `mesh`, which is
    `settings.tensor` ranks; without one this rank is a copy of its own. Only requests with stop texts need a
    vocabulary. reader, frozen: as in `VLLMRollout`. Raises InvalidJob for what vLLM cannot run."""
    is_cpu, mesh, model = device.type == "cpu", mesh or alone(device), policy.model
    require_world()
    _require_known(model, is_cpu=is_cpu)
    _require_positions(model, settings)
    require_block_size(settings, is_cpu=is_cpu)
    slices = WeightSlices.of(parse_shape(model.config.to_dict()), settings.tensor)
    arguments = engine_arguments(settings, path, is_cpu=is_cpu) | _memory(settings, model, device, mesh)
    if sees(model.config):
        arguments |= vision_arguments(shows=reader is not None)
    with preserved_process_state(_variables(is_cpu=is_cpu)), own_groups():
        built = _built(arguments, executor_of(mesh, device))
        built.collective_rpc(draw_by_position)
    if is_cpu:
        log.info("vLLM cannot sleep on the CPU: its weights and cache stay in memory while others compute")
    limits = Limits(
        model.config.get_text_config().vocab_size,
        settings.longest_row,
        ROLLOUT_ENGINES["VLLM"].temperatures,
        sees=reader is not None,
        gives_top_log_probs=True,
    )
    engine = VLLMRollout(
        built,
        _shapes(model),
        end_token_ids,
        limits,
        vocabulary,
        mesh=mesh,
        can_sleep=not is_cpu,
        reader=reader,
        frozen=frozen,
        slices=slices,
    )
    _load(engine, policy, settings, mesh, reader, slices)
    return engine


def _load(
    engine: VLLMRollout,
    policy: PolicyByLayers,
    settings: VLLMSettings,
    mesh: ProcessMesh,
    reader: PictureReader | None,
    slices: WeightSlices,
) -> None:
    """Weights, each read once: the leader of a copy computes with them on the way what the engine is compared with.
    Ranks of a copy read each layer together, so that it comes from storage once."""
    probe = Probe.of(policy.model.config, settings.longest_row, reader)
    beside = LayeredPass(ReferenceAnswer(probe, reader)) if mesh.is_leader else None
    whole = policy.tensors(beside, layer_is_read=lambda: mesh.range_in_copy(0))
    engine.load_weights(own_slices(whole, slices, mesh.rank % slices.tensor), 0, lasting=True)
    difference = difference_from(engine, probe, settings.longest_row, None if beside is None else beside.result)
    shared, _ = mesh.from_leader((1,), lambda: (np.array([difference]), None))
    require_near(float(shared[0]), settings.dtype, type(policy.model).__name__)


def _memory(
    settings: VLLMSettings, model: PreTrainedModel, device: torch.device, mesh: ProcessMesh
) -> dict[str, object]:
    """What vLLM may take: of a device a part of the whole, of a CPU the bytes of the cache. Ranks of a copy take as
    much as the one that has least: what they have room for decides what they compute next. On a device vLLM refuses
    more than the driver calls free, whatever torch keeps."""
    is_cpu = device.type == "cpu"
    free, _ = mesh.range_in_copy(free_memory(device, settings.workers_per_host) if is_cpu else free_of_driver(device))
    if is_cpu:
        return {"kv_cache_memory_bytes": cpu_cache_bytes(settings, model.config, model.dtype.itemsize, free)}
    weights = sum(parameter.nbytes for parameter in model.parameters()) // settings.tensor
    return {"gpu_memory_utilization": share_of_device(settings, weights, free, total_memory(device))}


def _shapes(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Tensors without memory under every name that a parameter has, the same one where names are tied."""
    empty = {id(parameter): parameter.detach() for parameter in model.parameters()}
    named = model.named_parameters(remove_duplicate=False)
    return dict(checkpoint_tensors((name, empty[id(item)]) for name, item in named))


def _variables(*, is_cpu: bool) -> dict[str, str]:
    """What is read of the environment while vLLM starts."""
    # Functions that take microseconds would be compiled when first called: ten seconds, and a C++ compiler.
    return {"TORCHDYNAMO_DISABLE": "1"} if is_cpu else {}


def _built(arguments: dict[str, object], executor: type[Executor]) -> LLMEngine:
    try:
        config = EngineArgs(**arguments).create_engine_config()
        _require_expert_groups(has_experts=config.model_config.is_moe)
        built = LLMEngine(config, executor, log_stats=False)
    except (ValueError, NotImplementedError, VLLMValidationError) as error:
        raise InvalidJob(f"vLLM refuses {arguments['model']!r}: {' '.join(str(error).split())}") from error
    # Its finalizer would end torch.distributed, which belongs to the worker.
    built.engine_core._finalizer.detach()
    return built


def _require_expert_groups(*, has_experts: bool) -> None:
    """vLLM makes its process groups once in a process; those of experts only where its first model has some. Raises
    ValueError."""
    if has_experts and parallel_state.model_parallel_is_initialized() and parallel_state._EP is None:
        raise ValueError(
            "it has experts, and the first model of this process had none, which vLLM keeps for good; let one of them "
            "generate in a worker group of its own, or write rollout.engine: Transformers"
        )


def _require_known(model: PreTrainedModel, *, is_cpu: bool) -> None:
    architectures = model.config.architectures or [type(model).__name__]
    if not set(architectures) & set(ModelRegistry.get_supported_archs()):
        raise InvalidJob(f"vLLM does not know models of class {architectures[0]}; write rollout.engine: Transformers")
    if borrowed := _by_layers_of_transformers(architectures):
        raise InvalidJob(
            f"vLLM has no layers of its own for models of class {borrowed}: it would change those of transformers, "
            "with which the same process trains, and lose the last layer's bias at an update; write rollout.engine: "
            "Transformers"
        )
    width, widths = head_dim(model.config), CPUAttentionBackend.get_supported_head_sizes()
    if is_cpu and width not in widths:
        raise InvalidJob(
            f"vLLM has no attention for heads of {width} numbers on the CPU, only of {', '.join(map(str, widths))}; "
            "write rollout.engine: Transformers"
        )


def _by_layers_of_transformers(architectures: Sequence[str]) -> str | None:
    """The first class that vLLM knows and computes with the modules of transformers."""
    known = (name for name in architectures if name in ModelRegistry.models)
    registered = ((name, getattr(ModelRegistry.models[name], "module_name", "")) for name in known)
    return next((name for name, module in registered if module == _TRANSFORMERS), None)


def _require_positions(model: PreTrainedModel, settings: VLLMSettings) -> None:
    positions = model.config.get_text_config().max_position_embeddings
    if settings.longest_row > positions:
        raise InvalidJob(
            f"rows of up to {settings.longest_row} tokens (data.maxPromptTokens and rollout.maxResponseTokens, or "
            f"rollout.maxSequenceTokens): the model's positions end at {positions}; shorten them"
        )
