"""Accelerator profiles: what a vendor needs, as data.  A new vendor is a new entry, never new code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from rljob_api.vocabulary.images import IMAGE
from rljob_api.vocabulary.model import ApiModel, Items


class HostPathMount(ApiModel):
    """A directory or a device of the host that workers see."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """The volume's name in the pod."""

    path: str = Field(pattern=r"^/")
    """Where it is on the host, and in the container too unless mountPath says otherwise."""

    mount_path: str | None = Field(default=None, pattern=r"^/")
    """Where it is in the container. Unset: at the same path."""

    type: str = ""
    """What must be there, such as Directory or CharDevice. Empty: no check."""

    read_only: bool = True
    """Whether workers may only read it."""


class RankTableSettings(ApiModel):
    """A file that the vendor's stack writes once it knows every device of the gang, and that workers wait for."""

    config_map: str = "rings-config-{gang}"
    """The ConfigMap; `{gang}` is the name of the attempt's pod group."""

    key: str = "hccl.json"
    """Its entry."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels by which the vendor's stack finds the ConfigMap."""

    initial: str = '{"status":"initializing"}'
    """What stands there before the vendor's stack has written."""

    mount_path: str = "/user/serverid/devindex/config"
    """The directory where workers see it."""

    env: str = "RANK_TABLE_FILE"
    """The variable by which the collectives find it. It counts every device of the gang, so it is set only where one
    worker group is the whole gang; ranks of several groups find each other through torch."""

    timeout_seconds: int = Field(default=600, ge=1)
    """How long a pod waits for it to say that it is complete."""


class AcceleratorSpeed(ApiModel):
    """What one accelerator reaches, not what its data sheet says. Ways to train a job are compared by it."""

    operations: float = Field(default=4e14, gt=0)
    """Floating-point operations a second of large matrix products in bf16: 4e14 is 40 % of an H100's peak."""

    link: float = Field(default=4e11, gt=0)
    """Bytes a second to another accelerator of its host."""

    network: float = Field(default=5e10, gt=0)
    """Bytes a second to another host: its share of the host's network."""

    host: float = Field(default=4e10, gt=0)
    """Bytes a second to the memory of its host."""

    device_memory: float = Field(default=2.5e12, gt=0)
    """Bytes a second that it reads or writes of its own memory: 2.5e12 is 75 % of an H100's peak."""

    host_memory: float = Field(default=2e10, gt=0)
    """Bytes a second that the host's processors read and write for it, with all of its neighbours at work."""

    cores: float = Field(default=12, ge=1)
    """Cores of its host's processors: its share of them."""


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

    memory: str | None = None
    """What one accelerator has, as its driver says it. Unset: unknown, and no job is refused for it."""

    speed: AcceleratorSpeed = AcceleratorSpeed()
    """What it reaches. Default: what an H100 does."""

    image: str | None = Field(default=None, pattern=IMAGE)
    """The workers' image. Unset: the operator's own for CPUs or for CUDA."""

    serve_image: str | None = Field(default=None, pattern=IMAGE)
    """The image of models beside a job. Unset: the operator's own for CPUs or for CUDA."""

    ray_resource: str | None = Field(default=None, min_length=1)
    """What Ray calls such an accelerator, such as GPU or NPU, by which it gives each copy of a model its own. Unset:
    Ray does not know it, and no model beside a job may ask for one."""

    visible_devices_env: str | None = None
    """The variable by which the launcher gives each worker its own accelerator. Unset: workers choose by local rank."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment of every worker."""

    env_from_fields: dict[str, str] = Field(default_factory=dict)
    """Environment that a pod learns about itself: variable to field, such as `status.podIP` or
    `metadata.annotations['huawei.com/Ascend910']`."""

    resources: dict[str, str] = Field(default_factory=dict)
    """Resources that a worker's container needs besides the accelerators, such as huge pages."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the vendor's scheduler plugin expects on pods."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations that the vendor's stack expects on pods and on their pod group; `{pods}` is the number of the job's
    pods."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels that select this accelerator."""

    tolerations: Items[dict[str, Any]] = ()
    """Tolerations for the taints that such nodes usually carry."""

    runtime_class: str | None = None
    """The RuntimeClass under which the vendor's container runtime is registered. Unset: the node's default."""

    host_paths: Items[HostPathMount] = ()
    """Drivers and devices of the host that workers see; only a privileged namespace allows them."""

    supplemental_groups: Items[int] = ()
    """Groups of the host that own the devices, so that workers need not be root."""

    capabilities: Items[str] = ()
    """Linux capabilities that workers need."""

    host_ipc: bool = False
    """Whether pods share the host's IPC namespace, which a restricted or baseline namespace forbids."""

    host_network: bool = False
    """Whether pods share the host's network, which a restricted or baseline namespace forbids."""

    rank_table: RankTableSettings | None = None
    """The rank table of the vendor's collectives. Unset: ranks find each other through torch."""

    schedulers: Items[str] = ()
    """Scheduling providers that this accelerator needs. Empty: any."""

    counts: Items[int] = ()
    """Accelerators per pod that the vendor allows. Empty: any."""


def _tolerate(key: str) -> tuple[dict[str, Any], ...]:
    return ({"key": key, "operator": "Exists", "effect": "NoSchedule"},)


_CPU = AcceleratorProfile(name="cpu", device="cpu", backend="gloo")

_NVIDIA = AcceleratorProfile(
    name="nvidia",
    resource="nvidia.com/gpu",
    device="cuda",
    backend="nccl",
    ray_resource="GPU",
    visible_devices_env="CUDA_VISIBLE_DEVICES",
    tolerations=_tolerate("nvidia.com/gpu"),
)


def _nvidia(
    name: str,
    memory: str,
    product: str,
    *,
    operations: float,
    link: float,
    device_memory: float = 2.5e12,
    host: float = 4e10,
) -> AcceleratorProfile:
    """One product by the label that GPU feature discovery gives its nodes. memory: as nvidia-smi says it. operations:
    40 % of the peak in bf16 without sparsity; link: 90 % of that in one direction; device_memory: 75 % of the peak."""
    return _NVIDIA.model_copy(
        update={
            "name": f"nvidia-{name}",
            "memory": memory,
            "node_selector": {"nvidia.com/gpu.product": product},
            "speed": AcceleratorSpeed(operations=operations, link=link, device_memory=device_memory, host=host),
        }
    )


def _ascend(name: str, resource: str, *, ring: str, accelerator: str, memory: str | None = None) -> AcceleratorProfile:
    """One generation of Huawei's Ascend under MindCluster: Volcano with the Ascend plugin chooses the chips, writes
    them into an annotation of the pod, and a controller makes the rank table of all pods' annotations.

    MindCluster exports RANK for the node where torch wants it per process, so the launcher sets ours per process.
    The driver is mounted from the host; a site with the Ascend container runtime sets `hostPaths: []`.
    """
    return AcceleratorProfile(
        name=name,
        resource=resource,
        memory=memory,
        device="npu",
        backend="hccl",
        ray_resource="NPU",
        visible_devices_env="ASCEND_RT_VISIBLE_DEVICES",
        env={"HCCL_CONNECT_TIMEOUT": "1200", "HCCL_WHITELIST_DISABLE": "1"},
        env_from_fields={
            "ASCEND_VISIBLE_DEVICES": f"metadata.annotations['{resource}']",
            "HCCL_IF_IP": "status.podIP",
            "XDL_IP": "status.hostIP",
        },
        labels={"ring-controller.atlas": ring, "fault-scheduling": "force"},
        annotations={"huawei.com/schedule_minAvailable": "{pods}"},
        node_selector={"accelerator": accelerator},
        tolerations=_tolerate(resource),
        host_paths=(HostPathMount(name="ascend-driver", path="/usr/local/Ascend/driver", type="Directory"),),
        supplemental_groups=(1000,),  # HwHiAiUser, who owns the devices
        rank_table=RankTableSettings(labels={"ring-controller.atlas": ring}),
        schedulers=("Volcano",),
        counts=(1, 2, 4, 8, 16),
    )


_METAX = AcceleratorProfile(
    name="metax",
    resource="metax-tech.com/gpu",
    device="cuda",
    backend="nccl",
    ray_resource="GPU",
    visible_devices_env="MACA_VISIBLE_DEVICES",
    tolerations=_tolerate("metax-tech.com/gpu"),
)

_METAX_C500 = _METAX.model_copy(update={"name": "metax-c500", "memory": "65536Mi"})

_ALIBABA_PPU = AcceleratorProfile(
    name="alibaba-ppu",
    resource="alibabacloud.com/ppu",
    device="cuda",
    backend="nccl",
    ray_resource="GPU",
    visible_devices_env="CUDA_VISIBLE_DEVICES",
    labels={
        "alibabacloud.com/compute-class": "gpu-hpn",
        "alibabacloud.com/compute-qos": "default",
        "alibabacloud.com/gpu-model-series": "PPU810E",
        "alibabacloud.com/hpn-type": "rdma",
    },
    tolerations=_tolerate("alibabacloud.com/ppu"),
)

_AMD = AcceleratorProfile(
    name="amd",
    resource="amd.com/gpu",
    device="cuda",
    backend="nccl",
    ray_resource="GPU",
    visible_devices_env="HIP_VISIBLE_DEVICES",
    tolerations=_tolerate("amd.com/gpu"),
    supplemental_groups=(44, 109),  # video and render, who own /dev/kfd and /dev/dri on Debian and Ubuntu
)

_AMD_MI300X = _AMD.model_copy(
    update={
        "name": "amd-mi300x",
        "memory": "196592Mi",
        "node_selector": {"amd.com/gpu.device-id": "74a1"},
        "speed": AcceleratorSpeed(operations=5.2e14, link=4e11, device_memory=4e12),  # parts of peaks as above
    }
)

_CAMBRICON = AcceleratorProfile(
    name="cambricon",
    resource="cambricon.com/mlu",
    device="mlu",
    backend="cncl",
    visible_devices_env="MLU_VISIBLE_DEVICES",
    tolerations=_tolerate("cambricon.com/mlu"),
)

_HYGON = AcceleratorProfile(
    name="hygon",
    resource="hygon.com/dcu",
    device="cuda",
    backend="nccl",
    visible_devices_env="HIP_VISIBLE_DEVICES",
    tolerations=_tolerate("hygon.com/dcu"),
    supplemental_groups=(39, 44),  # video, on the distributions that Hygon supports
)

_GAUDI = AcceleratorProfile(
    name="gaudi",
    resource="habana.ai/gaudi",
    device="hpu",
    backend="hccl",
    ray_resource="HPU",
    visible_devices_env="HABANA_VISIBLE_MODULES",
    resources={"hugepages-2Mi": "95000Mi"},
    capabilities=("SYS_NICE",),
    host_ipc=True,
    tolerations=_tolerate("habana.ai/gaudi"),
    counts=(1, 2, 4, 8),
)

_TPU = AcceleratorProfile(
    name="tpu",
    resource="google.com/tpu",
    device="xla",
    backend="xla",
    tolerations=_tolerate("google.com/tpu"),
    counts=(1, 4, 8),
)

# The pods of a group are one slice: its topology says how many hosts, which is the group's replicas.
_TPU_V6E_4X4 = _TPU.model_copy(
    update={
        "name": "tpu-v6e-4x4",
        "node_selector": {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "4x4",
        },
        "counts": (4,),
    }
)

_BUILT_IN = (
    _CPU,
    _NVIDIA,
    _nvidia(
        "a100-40gb",
        "40960Mi",
        "NVIDIA-A100-SXM4-40GB",
        operations=1.25e14,
        link=2.7e11,
        device_memory=1.17e12,
        host=2e10,
    ),
    _nvidia(
        "a100-80gb",
        "81920Mi",
        "NVIDIA-A100-SXM4-80GB",
        operations=1.25e14,
        link=2.7e11,
        device_memory=1.5e12,
        host=2e10,
    ),
    _nvidia("h100", "81559Mi", "NVIDIA-H100-80GB-HBM3", operations=4e14, link=4e11),
    _nvidia("h200", "143771Mi", "NVIDIA-H200", operations=4e14, link=4e11, device_memory=3.6e12),
    _nvidia("b200", "183359Mi", "NVIDIA-B200", operations=9e14, link=8e11, device_memory=6e12),
    _nvidia("l40s", "46068Mi", "NVIDIA-L40S", operations=1.45e14, link=2.5e10, device_memory=6.5e11, host=2e10),
    _ascend("ascend-910", "huawei.com/Ascend910", ring="ascend-910b", accelerator="huawei-Ascend910"),
    _ascend(
        "ascend-910b", "huawei.com/Ascend910", ring="ascend-910b", accelerator="huawei-Ascend910", memory="62432Mi"
    ),
    _ascend("huawei-npu", "huawei.com/npu", ring="ascend-npu", accelerator="huawei-npu"),
    _METAX,
    _METAX_C500,
    _ALIBABA_PPU,
    _AMD,
    _AMD_MI300X,
    _CAMBRICON,
    _HYGON,
    _GAUDI,
    _TPU,
    _TPU_V6E_4X4,
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
