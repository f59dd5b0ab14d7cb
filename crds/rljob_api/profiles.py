"""Accelerator profiles: what a vendor needs, as data.  A new vendor is a new entry, never new code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from rljob_api.model import ApiModel, Items


class AcceleratorProfile(ApiModel):
    """Everything that differs between accelerators."""

    name: str
    """What `accelerator.profile` says."""

    resource: str | None = None
    """The extended resource that a pod asks for. Unset: none, as on a CPU."""

    device: str
    """The torch device type: cpu, cuda, npu, mlu, hpu, xla."""

    backend: str
    """The torch.distributed backend: gloo, nccl, hccl, cncl, xla."""

    visible_devices_env: str | None = None
    """The variable by which the launcher gives each worker its own accelerator. Unset: workers choose by local rank."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment of every worker."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the vendor's scheduler plugin expects on pods."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations that the vendor's stack expects on pods."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels that select this accelerator."""

    tolerations: Items[dict[str, Any]] = ()
    """Tolerations for the taints that such nodes usually carry."""

    capabilities: Items[str] = ()
    """Linux capabilities that workers need."""

    host_ipc: bool = False
    """Whether pods share the host's IPC namespace, which a restricted or baseline namespace forbids."""

    schedulers: Items[str] = ()
    """Scheduling providers that this accelerator needs. Empty: any."""

    counts: Items[int] = ()
    """Accelerators per pod that the vendor allows. Empty: any."""


def _tolerate(key: str) -> tuple[dict[str, Any], ...]:
    return ({"key": key, "operator": "Exists", "effect": "NoSchedule"},)


_NVIDIA = AcceleratorProfile(
    name="nvidia",
    resource="nvidia.com/gpu",
    device="cuda",
    backend="nccl",
    visible_devices_env="CUDA_VISIBLE_DEVICES",
    tolerations=_tolerate("nvidia.com/gpu"),
)

# The Ascend stack exports RANK for the node; torch's is for the process, so the launcher sets ours per process.
_ASCEND = AcceleratorProfile(
    name="ascend-910",
    resource="huawei.com/Ascend910",
    device="npu",
    backend="hccl",
    visible_devices_env="ASCEND_RT_VISIBLE_DEVICES",
    env={"HCCL_CONNECT_TIMEOUT": "1200", "HCCL_WHITELIST_DISABLE": "1"},
    labels={"ring-controller.atlas": "ascend-910b"},
    node_selector={"accelerator": "huawei-Ascend910"},
    tolerations=_tolerate("huawei.com/Ascend910"),
    schedulers=("Volcano",),
    counts=(1, 2, 4, 8, 16),
)

_BUILT_IN = (
    AcceleratorProfile(name="cpu", device="cpu", backend="gloo"),
    _NVIDIA,
    _NVIDIA.model_copy(
        update={"name": "nvidia-h100", "node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
    ),
    _ASCEND,
    _ASCEND.model_copy(
        update={
            "name": "huawei-npu",
            "resource": "huawei.com/npu",
            "labels": {"ring-controller.atlas": "ascend-npu"},
            "node_selector": {"accelerator": "huawei-npu"},
            "tolerations": _tolerate("huawei.com/npu"),
        }
    ),
    AcceleratorProfile(
        name="metax",
        resource="metax-tech.com/gpu",
        device="cuda",
        backend="nccl",
        visible_devices_env="MACA_VISIBLE_DEVICES",
        tolerations=_tolerate("metax-tech.com/gpu"),
    ),
    AcceleratorProfile(
        name="alibaba-ppu",
        resource="alibabacloud.com/ppu",
        device="cuda",
        backend="nccl",
        visible_devices_env="CUDA_VISIBLE_DEVICES",
        tolerations=_tolerate("alibabacloud.com/ppu"),
    ),
    AcceleratorProfile(
        name="amd",
        resource="amd.com/gpu",
        device="cuda",
        backend="nccl",
        visible_devices_env="HIP_VISIBLE_DEVICES",
        tolerations=_tolerate("amd.com/gpu"),
    ),
    AcceleratorProfile(
        name="cambricon",
        resource="cambricon.com/mlu",
        device="mlu",
        backend="cncl",
        visible_devices_env="MLU_VISIBLE_DEVICES",
        tolerations=_tolerate("cambricon.com/mlu"),
    ),
    AcceleratorProfile(
        name="hygon",
        resource="hygon.com/dcu",
        device="cuda",
        backend="nccl",
        visible_devices_env="HIP_VISIBLE_DEVICES",
        tolerations=_tolerate("hygon.com/dcu"),
    ),
    AcceleratorProfile(
        name="gaudi",
        resource="habana.ai/gaudi",
        device="hpu",
        backend="hccl",
        visible_devices_env="HABANA_VISIBLE_DEVICES",
        capabilities=("SYS_NICE",),
        host_ipc=True,
        tolerations=_tolerate("habana.ai/gaudi"),
    ),
    AcceleratorProfile(
        name="tpu", resource="google.com/tpu", device="xla", backend="xla", tolerations=_tolerate("google.com/tpu")
    ),
)

DEFAULT: Mapping[str, AcceleratorProfile] = MappingProxyType({profile.name: profile for profile in _BUILT_IN})
"""The profiles that come with rljob, by name."""


def profiles_from(values: Mapping[str, Mapping[str, Any]]) -> Mapping[str, AcceleratorProfile]:
    """The default profiles with a site's own over them, field by field.

    `values` is a mapping from profile name to fields in camelCase, as in the chart's values.
    """
    merged = dict(DEFAULT)
    for name, fields in values.items():
        base = DEFAULT[name].to_json() if name in DEFAULT else {}
        merged[name] = AcceleratorProfile.model_validate({**base, **fields, "name": name})
    return MappingProxyType(merged)
