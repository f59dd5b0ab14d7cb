"""What a job needs of its surroundings before any of its pods is made.  Pure: what to read, and what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.data_url import VARIABLES, scheme_of
from rljob_operator.cluster.kinds import CONFIG_MAP, NAMESPACE, PERSISTENT_VOLUME_CLAIM, SECRET, ResourceKind
from rljob_operator.manifests.children import child_problems, pod_security_problem
from rljob_operator.manifests.configmaps import plan_size_problem
from rljob_operator.manifests.context import JobContext
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.situation import Refusal

Object = Mapping[str, Any]

WORKER_PACKAGE = "rljob_worker"


@dataclass(frozen=True)
class Need:
    """An object that must be there, and be as it should."""

    kind: ResourceKind
    name: str
    problem: Callable[[Object | None], Refusal | None]
    """What is wrong with it; None stands for an object that is not there."""


def size_problem(context: JobContext) -> Refusal | None:
    """Whether the plan is too large for any cluster."""
    message = plan_size_problem(context)
    return Refusal(Reason.PLAN_TOO_LARGE, message, is_final=True) if message else None


def image_problem(context: JobContext) -> Refusal | None:
    """Whether nobody has said which image runs on the job's accelerators."""
    result = child_problems(context)
    return Refusal(Reason.IMAGE_UNKNOWN, "; ".join(result)) if result else None


def needs(context: JobContext) -> list[Need]:
    """Everything to look at, cheapest to mend first."""
    return [*_namespace(context), *_claims(context), *_code(context), *_store(context), *_variables(context)]


def waits_for_a_pod(storage_class: Object | None) -> bool:
    """Whether a claim of this class gets its volume only when a pod wants it."""
    return (storage_class or {}).get("volumeBindingMode") == "WaitForFirstConsumer"


def _not_bound(claim: Object, field: str) -> Refusal:
    name, phase = claim["metadata"]["name"], (claim.get("status") or {}).get("phase", "Pending")
    message = (
        f"{field}: PersistentVolumeClaim {name} in namespace {claim['metadata']['namespace']} is {phase}, not Bound; "
        f"kubectl describe pvc {name} says why"
    )
    return Refusal(Reason.STORAGE_CLAIM_NOT_BOUND, message)


def user_modules(spec: RLJobSpec) -> set[str]:
    """Top-level modules of the user's that stages, rewards, services and the algorithm name, leaving out our own."""
    algorithm = spec.algorithm
    names = [*(reward.run for reward in spec.rewards), *(service.run for service in spec.services)]
    names += [stage.run for stage in spec.dag.stages] if spec.dag else []
    names += [algorithm.advantage.estimator, algorithm.loss.name, algorithm.loss.aggregation, algorithm.kl.estimator]
    modules = {name.partition(":")[0].partition(".")[0] for name in names if USER_STAGE.match(name)}
    return modules - {WORKER_PACKAGE}


def _namespace(context: JobContext) -> Iterator[Need]:
    def problem(namespace: Object | None) -> Refusal | None:
        metadata = (namespace or {}).get("metadata") or {}
        if "deletionTimestamp" in metadata:
            return Refusal(Reason.NAMESPACE_TERMINATING, f"namespace {context.namespace} is being deleted")
        message = pod_security_problem(context, metadata.get("labels") or {})
        return Refusal(Reason.POD_SECURITY_CONFLICT, message) if message else None

    yield Need(NAMESPACE, context.namespace, problem)


def _claims(context: JobContext) -> Iterator[Need]:
    spec = context.spec
    named = {}
    if spec.claim is not None:
        named[spec.claim] = "spec.storage.persistentVolumeClaim"
    if spec.code is not None and spec.code.persistent_volume_claim is not None:
        named.setdefault(spec.code.persistent_volume_claim, "spec.code.persistentVolumeClaim")
    for name, field in named.items():
        yield Need(PERSISTENT_VOLUME_CLAIM, name, _claim_problem(context.namespace, name, field))


def _claim_problem(namespace: str, name: str, field: str) -> Callable[[Object | None], Refusal | None]:
    def problem(claim: Object | None) -> Refusal | None:
        if claim is None:
            message = f"{field}: there is no PersistentVolumeClaim {name} in namespace {namespace}; make it"
            return Refusal(Reason.STORAGE_CLAIM_MISSING, message)
        is_bound = (claim.get("status") or {}).get("phase") == "Bound"
        return None if is_bound else _not_bound(claim, field)

    return problem


def _code(context: JobContext) -> Iterator[Need]:
    code = context.spec.code
    if code is None or code.config_map is None:
        return
    name, namespace, modules = code.config_map, context.namespace, user_modules(context.spec)

    def problem(config_map: Object | None) -> Refusal | None:
        if config_map is None:
            message = f"spec.code.configMap: there is no ConfigMap {name} in namespace {namespace}; make it"
            return Refusal(Reason.CODE_MISSING, message)
        entries = {**(config_map.get("data") or {}), **(config_map.get("binaryData") or {})}
        lacking = sorted(module for module in modules if f"{module}.py" not in entries)
        if not lacking:
            return None
        message = (
            f"spec.code.configMap: ConfigMap {name} has no entry {', '.join(f'{item}.py' for item in lacking)}, "
            f"which the job names; it has {', '.join(sorted(entries)) or 'none'}"
        )
        return Refusal(Reason.CODE_MISSING, message)

    yield Need(CONFIG_MAP, name, problem)


def _store(context: JobContext) -> Iterator[Need]:
    store = context.spec.object_store
    if store is not None and store.secret is not None:
        yield Need(SECRET, store.secret, _secret_problem(context.namespace, store.secret, store.uri))


def _secret_problem(namespace: str, name: str, uri: str) -> Callable[[Object | None], Refusal | None]:
    """A Secret without a single variable of the store was made for something else: its entries may have other names.

    They are not said: who may make jobs need not be allowed to read Secrets."""
    place, scheme = "spec.storage.objectStore.secret", scheme_of(uri) or ""

    def problem(secret: Object | None) -> Refusal | None:
        if secret is None:
            message = f"{place}: there is no Secret {name} in namespace {namespace}; make it"
            return Refusal(Reason.SECRET_MISSING, message)
        if any(entry.startswith(VARIABLES[scheme]) for entry in secret.get("data") or {}):
            return None
        message = (
            f"{place}: Secret {name} has no entry {VARIABLES[scheme]}..., which is how the variables of {scheme}:// "
            f"begin; name its entries as docs/data.md does"
        )
        return Refusal(Reason.SECRET_MISSING, message)

    return problem


def _variables(context: JobContext) -> Iterator[Need]:
    for index, variable in enumerate(context.spec.env):
        source = variable.value_from
        for kind, selector in (
            (SECRET, source.secret_key_ref if source else None),
            (CONFIG_MAP, source.config_map_key_ref if source else None),
        ):
            if selector is not None and not selector.optional:
                yield Need(kind, selector.name, _key_problem(context, index, kind, selector.name, selector.key))


def _key_problem(
    context: JobContext, index: int, kind: ResourceKind, name: str, key: str
) -> Callable[[Object | None], Refusal | None]:
    place = f"spec.env[{index}] {context.spec.env[index].name}"

    def problem(result: Object | None) -> Refusal | None:
        if result is None:
            message = f"{place}: there is no {kind.kind} {name} in namespace {context.namespace}; make it"
        elif key not in (entries := {**(result.get("data") or {}), **(result.get("binaryData") or {})}):
            # who may make jobs need not be allowed to read Secrets
            known = "" if kind == SECRET else f"; it has {', '.join(sorted(entries)) or 'none'}"
            message = f"{place}: {kind.kind} {name} has no key {key}{known}"
        else:
            return None
        return Refusal(Reason.SECRET_MISSING, message)

    return problem
