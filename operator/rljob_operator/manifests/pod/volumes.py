"""The volumes of a pod, and where its containers see them, and what else is at a fixed place."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.catalogue.profiles import AcceleratorProfile, RankTableSettings
from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.resources import mebibytes, spill_volume_bytes, spills_to_pod_volume
from rljob_operator.manifests.secrets import TOKEN_KEY, tls_items

PLAN_DIRECTORY = "/etc/rljob/plan"
PLAN_FILE = f"{PLAN_DIRECTORY}/{keys.PLAN_KEY}"
TOKEN_DIRECTORY = "/etc/rljob/token"
TOKEN_FILE = f"{TOKEN_DIRECTORY}/{TOKEN_KEY}"
TLS_DIRECTORY = "/etc/rljob/tls"
SOCKET_DIRECTORY = "/run/rljob"
SOCKET = f"{SOCKET_DIRECTORY}/buffer.sock"
ARENA = "/arena"
SPILL = "/spill"
CODE = "/code"
SCRATCH = "/tmp"
RUNS = f"{keys.WORKSPACE}/runs"

READABLE = 0o440
"""For the owner and for fsGroup."""


def rank_table_path(table: RankTableSettings) -> str:
    """The file that the vendor's stack fills."""
    return f"{table.mount_path}/{table.key}"


@dataclass(frozen=True)
class Mounted:
    """A volume and its place in the containers that see it."""

    volume: Manifest
    mount: Manifest
    buffer: bool
    """Whether the data buffer sees it."""
    worker: bool = True
    """Whether the workers see it."""


def mounted_volumes(context: JobContext, group: GroupPlan, host: int, attempt: int) -> list[Mounted]:
    """Every volume of a pod of `group`."""
    profile = context.profile(group)
    return [
        *identity_volumes(context),
        *_meeting_place(context),
        *_certificates(context, group, host, attempt),
        *scratch_volumes(context),
        *users_volumes(context),
        *host_volumes(profile),
        *(_rank_table(context, profile, attempt) if group.elastic is None else []),
    ]


def identity_volumes(context: JobContext) -> list[Mounted]:
    """What every container of ours sees: the plan, and the token."""
    plan_name = names.plan_config_map_name(context.name, context.plan_hash)
    plan = {"configMap": {"name": plan_name, "items": [{"key": keys.PLAN_KEY, "path": keys.PLAN_KEY}]}}
    return [
        _mounted("plan", plan, PLAN_DIRECTORY, buffer=True, read_only=True),
        token_volume(context),
    ]


def token_volume(context: JobContext) -> Mounted:
    """What those of one job know each other by."""
    token = {
        "secret": {
            "secretName": names.token_secret_name(context.name),
            "defaultMode": READABLE,
            "items": [{"key": TOKEN_KEY, "path": TOKEN_KEY}],
        }
    }
    return _mounted("token", token, TOKEN_DIRECTORY, buffer=True, read_only=True)


def _meeting_place(context: JobContext) -> list[Mounted]:
    """Where workers and data buffer meet."""
    arena = {"emptyDir": {"medium": "Memory", "sizeLimit": context.spec.data_buffer.memory}}
    spill = (
        {"emptyDir": {"sizeLimit": mebibytes(spill_volume_bytes(context))}} if spills_to_pod_volume(context) else None
    )
    return [
        _mounted("socket", {"emptyDir": {}}, SOCKET_DIRECTORY, buffer=True),
        _mounted("arena", arena, ARENA, buffer=True),
        *([_mounted("spill", spill, SPILL, buffer=True)] if spill else []),
    ]


def _certificates(context: JobContext, group: GroupPlan, host: int, attempt: int) -> list[Mounted]:
    """The data buffer's alone, unless agents of other pods are served: workers speak with it through a socket of the
    pod."""
    if not context.spec.data_buffer.tls:
        return []
    name = names.tls_secret_name(context.name, attempt)
    secret = {"secretName": name, "defaultMode": READABLE, "items": tls_items(group, host)}
    return [
        _mounted("tls", {"secret": secret}, TLS_DIRECTORY, buffer=True, worker=context.spec.serves_pods, read_only=True)
    ]


def scratch_volumes(context: JobContext) -> list[Mounted]:
    """What lives and dies with the pod."""
    shared_memory = {"emptyDir": {"medium": "Memory", "sizeLimit": context.pods.worker.shared_memory}}
    return [
        _mounted("shared-memory", shared_memory, "/dev/shm"),
        _mounted("scratch", {"emptyDir": {}}, SCRATCH),
    ]


def users_volumes(context: JobContext) -> list[Mounted]:
    """Storage and code. Without a claim, results go beside what the image carries under /workspace, on the node."""
    spec, result = context.spec, []
    if spec.claim is not None:
        claim = {"persistentVolumeClaim": {"claimName": spec.claim}}
        result.append(_mounted("workspace", claim, keys.WORKSPACE))
    else:
        result.append(_mounted("runs", {"emptyDir": {}}, RUNS))
    if spec.code is not None and spec.code.config_map is not None:
        result.append(_mounted("code", {"configMap": {"name": spec.code.config_map}}, CODE, read_only=True))
    elif spec.code is not None and spec.code.persistent_volume_claim is not None:
        claim = {"persistentVolumeClaim": {"claimName": spec.code.persistent_volume_claim}}
        result.append(_mounted("code", claim, CODE, read_only=True))
    return result


def host_volumes(profile: AcceleratorProfile) -> list[Mounted]:
    """What the accelerator's software needs of its node."""
    result = []
    for host in profile.host_paths:
        source = {"hostPath": {"path": host.path, "type": host.type}}
        result.append(_mounted(host.name, source, host.mount_path or host.path, read_only=host.read_only))
    return result


def _rank_table(context: JobContext, profile: AcceleratorProfile, attempt: int) -> list[Mounted]:
    if profile.rank_table is None:
        return []
    source = {"configMap": {"name": rank_table_name(context, profile.rank_table.config_map, attempt)}}
    return [_mounted("rank-table", source, profile.rank_table.mount_path, read_only=True)]


def rank_table_name(context: JobContext, pattern: str, attempt: int) -> str:
    """A ConfigMap of each attempt: the table of the one before must not be taken for this one's."""
    return pattern.format(gang=names.pod_group_name(context.name, attempt))


def _mounted(
    name: str, source: Manifest, path: str, *, buffer: bool = False, worker: bool = True, read_only: bool = False
) -> Mounted:
    mount: Manifest = {"name": name, "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    return Mounted({"name": name, **source}, mount, buffer, worker)
