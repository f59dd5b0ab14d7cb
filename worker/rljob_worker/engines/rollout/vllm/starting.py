"""From settings and a policy to an engine that generates with it."""

from __future__ import annotations

import psutil
import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.model_executor.models.registry import ModelRegistry
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.engine.llm_engine import LLMEngine

from rljob_worker.engines.rollout.cache_bytes import head_dim
from rljob_worker.engines.rollout.vllm.engine import VLLMRollout
from rljob_worker.engines.rollout.vllm.reload_check import require_faithful
from rljob_worker.engines.rollout.vllm.settings import (
    VLLMSettings,
    cpu_cache_bytes,
    engine_arguments,
    require_block_size,
)
from rljob_worker.engines.rollout.vllm.surroundings import kept_surroundings
from rljob_worker.errors import InvalidJob


def start(
    settings: VLLMSettings,
    path: str,
    model: PreTrainedModel,
    end_token_ids: tuple[int, ...],
    device: torch.device,
    local_rank: int = 0,
) -> VLLMRollout:
    """An engine with the weights of `model`, which is read and not kept. Raises InvalidJob for what vLLM cannot run."""
    is_cpu = device.type == "cpu"
    _require_known(model, is_cpu=is_cpu)
    _require_positions(model, settings)
    require_block_size(settings, is_cpu=is_cpu)
    arguments = engine_arguments(settings, path, is_cpu=is_cpu, is_distributed=dist.is_initialized())
    if is_cpu:
        free = psutil.virtual_memory().available
        arguments["kv_cache_memory_bytes"] = cpu_cache_bytes(settings, model.config, model.dtype.itemsize, free)
    with kept_surroundings(_variables(settings, local_rank)):
        built = _built(arguments)
    parameters = {name: each.detach().to("meta") for name, each in model.named_parameters()}
    for name, each in model.named_parameters(remove_duplicate=False):  # tied names share a tensor
        parameters.setdefault(name, parameters[_first_name(model, each)])
    engine = VLLMRollout(built, parameters, end_token_ids, can_sleep=not is_cpu)
    engine.load_weights(((name, each.detach()) for name, each in model.named_parameters()), 0)
    require_faithful(engine, model, settings.dtype, settings.longest_row)
    return engine


def _first_name(model: PreTrainedModel, parameter: torch.nn.Parameter) -> str:
    return next(name for name, each in model.named_parameters() if each is parameter)


def _variables(settings: VLLMSettings, local_rank: int) -> dict[str, str]:
    """What vLLM reads of a launcher while it starts."""
    found = {"VLLM_BATCH_INVARIANT": "1"} if settings.batch_invariant else {}
    if dist.is_initialized():
        found |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(local_rank)}
    return found


def _built(arguments: dict[str, object]) -> LLMEngine:
    try:
        built = LLMEngine.from_engine_args(EngineArgs(**arguments))
    except (ValueError, NotImplementedError, VLLMValidationError) as error:
        raise InvalidJob(f"vLLM refuses {arguments['model']!r}: {' '.join(str(error).split())}") from error
    # Its finalizer would end torch.distributed, which belongs to the worker.
    built.engine_core._finalizer.detach()
    return built


def _require_known(model: PreTrainedModel, *, is_cpu: bool) -> None:
    architectures = model.config.architectures or [type(model).__name__]
    if not set(architectures) & set(ModelRegistry.get_supported_archs()):
        raise InvalidJob(f"vLLM does not know models of class {architectures[0]}; write rollout.engine: Transformers")
    width, widths = head_dim(model.config), CPUAttentionBackend.get_supported_head_sizes()
    if is_cpu and width not in widths:
        raise InvalidJob(
            f"vLLM has no attention for heads of {width} numbers on the CPU, only of {', '.join(map(str, widths))}; "
            "write rollout.engine: Transformers"
        )


def _require_positions(model: PreTrainedModel, settings: VLLMSettings) -> None:
    positions = model.config.max_position_embeddings
    if settings.longest_row > positions:
        raise InvalidJob(
            f"rows of up to {settings.longest_row} tokens (data.maxPromptTokens and rollout.maxResponseTokens, or "
            f"rollout.maxSequenceTokens): the model's positions end at {positions}; shorten them"
        )
