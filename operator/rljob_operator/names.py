"""Names of a job's children.  Pure; every name begins with the job's, and none can be taken for another job's."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple


def plan_config_map_name(job: str, plan_hash: str) -> str:
    """The ConfigMap of one plan: another plan is another object."""
    return f"{job}-plan-{plan_hash[:10]}"


def token_secret_name(job: str) -> str:
    """The Secret that data buffers know each other by."""
    return f"{job}-token"


def agents_name(job: str) -> str:
    """The Deployment of agents beside the job."""
    return f"{job}-agents"


def tls_secret_name(job: str, attempt: int) -> str:
    """The Secret with the certificates of one attempt's data buffers."""
    return f"{job}-tls-a{attempt}"


def service_name(job: str) -> str:
    """The headless Service, which is the domain of the pods' host names; a Service's name begins with a letter.

    A name that begins as ours would gets our beginning too, so that no other job's becomes the same.
    """
    return job if job[0].isalpha() and not job.startswith("rljob-") else f"rljob-{job}"


def host_name(job: str, group: str, host: int) -> str:
    """What a pod is called inside the job: the same in every attempt."""
    return f"{job}-{group}-{host}"


def pod_name(job: str, group: str, host: int, attempt: int) -> str:
    """What a pod is called in the cluster: another one in every attempt."""
    return f"{host_name(job, group, host)}-a{attempt}"


class PodName(NamedTuple):
    """What a pod's name says, which nobody can edit."""

    host_name: str
    attempt: int


_POD_NAME = re.compile(r"(.+)-a([0-9]{1,18})")  # people may make pods, too, and a status holds 64 bits


def parse_pod_name(name: str) -> PodName | None:
    """The reverse of `pod_name`; None for what is not a pod's name of ours."""
    match = _POD_NAME.fullmatch(name)
    return None if match is None else PodName(match[1], int(match[2]))


def guest_pod_name(job: str, group: str, index: int, attempt: int, start: int) -> str:
    """A pod of an elastic group: another one after every end, within its attempt."""
    return f"{pod_name(job, group, index, attempt)}-g{start}"


class GuestPodName(NamedTuple):
    """What the name of a pod of an elastic group says."""

    number: int
    attempt: int
    start: int


_GUEST_POD_NAME = re.compile(r".+-([0-9]{1,9})-a([0-9]{1,18})-g([0-9]{1,18})")


def parse_guest_pod_name(name: str) -> GuestPodName | None:
    """The reverse of `guest_pod_name`; None for what is no such pod."""
    match = _GUEST_POD_NAME.fullmatch(name)
    return None if match is None else GuestPodName(*map(int, match.groups()))


def pod_group_name(job: str, attempt: int) -> str:
    """The gang of one attempt."""
    return f"{job}-a{attempt}"


def workload_name(job: str) -> str:
    """Kueue's Workload, which outlives attempts: quota is held while the gang restarts."""
    return f"rljob-{job}"


def services_domain(job: str) -> str:
    """The headless Service of the models beside a job: another than the pods' own, whose names resolve before they are
    ready."""
    return f"rljob-services-{job}"


def service_host(service: str) -> str:
    """What the pod of a service is called in that domain; a service's name has no dashes, so no two become one."""
    return service.replace("_", "-")


def service_url(job: str, namespace: str, service: str, port: int) -> str:
    """Where a service answers."""
    return f"http://{service_host(service)}.{services_domain(job)}.{namespace}.svc:{port}/{service}"


def service_pod_name(job: str, service: str, start: int) -> str:
    """The pod of a service: another one after every end. No dash stands for the underscores of the service's name, so
    that the name can be read back, and job `a-b` with service `c` is not job `a` with service `b_c`."""
    return f"{job}-{service.replace('_', '.')}-r{start}"


class ServicePodName(NamedTuple):
    """What the name of a service's pod says."""

    service: str
    start: int


_SERVICE_POD_NAME = re.compile(r".+-([a-z][a-z0-9.]*)-r([0-9]{1,18})")


def parse_service_pod_name(name: str) -> ServicePodName | None:
    """The reverse of `service_pod_name`; None for what is not a service's pod."""
    match = _SERVICE_POD_NAME.fullmatch(name)
    return None if match is None else ServicePodName(match[1].replace(".", "_"), int(match[2]))


_RAY_SERVICE_NAME = re.compile(r".+-r([0-9]{1,18})")


def ray_service_name(job: str, service: str, start: int) -> str:
    """The RayService of a service: at most 47 characters, and a letter first.  What stands for job and service is in
    its labels; the name only tells it from every other."""
    digest = hashlib.sha256(f"{job}/{service}".encode()).hexdigest()[:8]
    beginning = f"{job}-{service_host(service)}" if job[0].isalpha() else f"rljob-{job}-{service_host(service)}"
    return f"{beginning[:24].strip('-')}-{digest}-r{start}"


def parse_ray_service_name(name: str) -> int | None:
    """The start in the name of a RayService; None for what is none of ours."""
    match = _RAY_SERVICE_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def service_pod_set(service: str) -> str:
    """What a queue calls the pods that serve a service; a worker group's name has no dash."""
    return f"service-{service_host(service)}"


def service_head_pod_set(service: str) -> str:
    """What it calls the head of their Ray; a host name of a service has no two dashes together."""
    return f"{service_pod_set(service)}--head"


def peers_template(job: str, namespace: str, port: int) -> str:
    """Where data buffers are, as a str.format template over `job`, `group` and `host`."""
    return f"{{job}}-{{group}}-{{host}}.{service_name(job)}.{namespace}.svc:{port}"
