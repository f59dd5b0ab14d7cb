"""Environment of a pod's containers.  `worker/rljob_worker/local/pods/environment.py` is the same on one machine."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.planning.plan import GroupPlan
from rljob_api.v1alpha1.infrastructure import EnvVar
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.process_environment import MALLOC_KEEPS_MEMORY, WORKER_DEFAULTS
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.resources import spills_to_pod_volume, threads_per_worker
from rljob_operator.manifests.pod.volumes import (
    ARENA,
    CODE,
    PLAN_FILE,
    RUNS,
    SCRATCH,
    SOCKET,
    SPILL,
    TLS_DIRECTORY,
    TOKEN_FILE,
    rank_table_path,
)

EnvList = list[Manifest]

CODE_PATH = f"{CODE}:{keys.WORKSPACE}"
"""Where the job's own modules are."""

_PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def worker_env(context: JobContext, group: GroupPlan, host: int, attempt: int) -> EnvList:
    """Environment of the workers: what is given, except ours that say who the pod is."""
    profile = context.profile(group)
    own = {**identity(context, group, host, attempt), **_run(context, attempt)}
    if group.elastic is None:  # a rank table lists what starts together
        own |= _rank_table(context, profile)
    own |= _services(context)
    if context.spec.serves_pods:
        own[keys.ENV_TLS_DIR] = TLS_DIRECTORY
    own[keys.ENV_METRICS_PORT] = str(keys.PORT_WORKER_METRICS)
    own[keys.ENV_CODE] = CODE_PATH
    given = given_variables(context, profile, threads_per_worker(context, group))
    return by_name(given + as_list(own))


def given_variables(context: JobContext, profile: AcceleratorProfile, num_threads: int) -> EnvList:
    """The operator's, the site's, the profile's, the job's; later ones win."""
    plain = {**_PYTHON, **_home(context), **_threads(num_threads), **context.pods.env, **profile.env}
    variables = as_list(plain)
    for name, path in profile.env_from_fields.items():
        variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    return variables + [_job_variable(variable) for variable in context.spec.env]


def buffer_env(context: JobContext, group: GroupPlan, host: int, attempt: int) -> EnvList:
    """Environment of the data buffer; of the job's variables only those that are for it."""
    given = [_job_variable(variable) for variable in context.spec.env if variable.name in keys.BUFFER_ENVIRONMENT]
    own = {
        **MALLOC_KEEPS_MEMORY,
        **identity(context, group, host, attempt),
        keys.ENV_METRICS_PORT: str(keys.PORT_BUFFER_METRICS),
        keys.ENV_BUFFER_PORT: str(keys.PORT_BUFFER),
        keys.ENV_ARENA_DIR: ARENA,
        **({keys.ENV_SPILL_DIR: SPILL} if spills_to_pod_volume(context) else {}),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if context.spec.data_buffer.tls:
        own[keys.ENV_TLS_DIR] = TLS_DIRECTORY
    return given + as_list(own)


def identity(context: JobContext, group: GroupPlan, host: int, attempt: int) -> dict[str, str]:
    """Who a pod is; the same for both containers."""
    return {
        keys.ENV_PLAN: PLAN_FILE,
        keys.ENV_GROUP: group.name,
        keys.ENV_HOST_INDEX: str(host),
        keys.ENV_ATTEMPT: str(attempt),
        keys.ENV_PEERS: names.peers_template(context.name, context.namespace, keys.PORT_BUFFER),
        keys.ENV_BUFFER: SOCKET,
        keys.ENV_TOKEN_FILE: TOKEN_FILE,
    }


def by_name(variables: EnvList) -> EnvList:
    """Each variable once, the last one given."""
    return list({variable["name"]: variable for variable in variables}.values())


def _services(context: JobContext) -> dict[str, str]:
    """Where the models beside the job answer, and the token that they ask for."""
    result = [service.name for service in context.spec.services]
    if not result:
        return {}
    urls = {name: names.service_url(context.name, context.namespace, name, keys.PORT_SERVICE) for name in result}
    return {keys.ENV_SERVICES: json.dumps(urls), keys.ENV_SERVICES_TOKEN_FILE: TOKEN_FILE}


def _run(context: JobContext, attempt: int) -> dict[str, str]:
    first = attempt == 1
    checkpoint = context.spec.checkpoint
    return {
        keys.ENV_RUN_DIR: f"{RUNS}/{context.name}",
        **_home_of_run(context),
        keys.ENV_RUN_ID: context.uid,
        keys.ENV_RESUME: "never" if first and checkpoint.resume == "Never" else "auto",
        keys.ENV_CHECKPOINTS: "on" if keeps_checkpoints(context) else "off",
    }


def _home_of_run(context: JobContext) -> dict[str, str]:
    """Jobs of the same name in two namespaces may name the same folder."""
    store = context.spec.object_store
    return {} if store is None else {keys.ENV_RUN_HOME: f"{store.uri.rstrip('/')}/{context.namespace}/{context.name}"}


def store_variables(context: JobContext) -> list[Manifest]:
    """`envFrom` of the workers: the credentials of the job's object store, below every variable that is given."""
    store = context.spec.object_store
    return [] if store is None or store.secret is None else [{"secretRef": {"name": store.secret}}]


def keeps_checkpoints(context: JobContext) -> bool:
    """Whether the parts of a checkpoint come together: on shared storage, or on the disk of a single pod."""
    return context.spec.storage is not None or context.num_pods == 1


def _home(context: JobContext) -> dict[str, str]:
    """Everything that libraries like to write goes to volumes: the image's file system is read-only, and its user may
    have no entry in /etc/passwd, where getpass would look."""
    shared = context.spec.claim is not None
    return {
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "USER": "rljob",
        "LOGNAME": "rljob",
        "XDG_CACHE_HOME": f"{SCRATCH}/.cache",
        "HF_HOME": f"{keys.WORKSPACE if shared else SCRATCH}/.cache/huggingface",
        "MPLCONFIGDIR": f"{SCRATCH}/.config/matplotlib",
        "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{SCRATCH}/.cache/triton",
    }


def _threads(num_threads: int) -> dict[str, str]:
    """Without it each of n workers starts as many threads as the node has cores, and they all get slower."""
    return {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads), **WORKER_DEFAULTS}


def _rank_table(context: JobContext, profile: AcceleratorProfile) -> dict[str, str]:
    table = profile.rank_table
    if table is None:
        return {}
    path = rank_table_path(table)
    awaited = {keys.ENV_RANK_TABLE: path, keys.ENV_RANK_TABLE_SECONDS: str(table.timeout_seconds)}
    return {**awaited, table.env: path} if len(context.plan.groups) == 1 else awaited


def _job_variable(variable: EnvVar) -> Manifest:
    entry: Manifest = {"name": variable.name}
    if variable.value_from is not None:
        entry["valueFrom"] = _without_none(variable.value_from.to_json())
    else:
        entry["value"] = variable.value or ""
    return entry


def as_list(variables: Mapping[str, str]) -> EnvList:
    """Variables as a container has them."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def _without_none(value: Manifest) -> Manifest:
    return {
        key: _without_none(item) if isinstance(item, dict) else item for key, item in value.items() if item is not None
    }
