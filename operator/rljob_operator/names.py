"""Names of a job's children.  Pure; every name begins with the job's, and none can be taken for another job's."""

from __future__ import annotations

import re
from typing import NamedTuple


def plan_config_map_name(job: str, plan_hash: str) -> str:
    """The ConfigMap of one plan: another plan is another object."""
    return f"{job}-plan-{plan_hash[:10]}"


def token_secret_name(job: str) -> str:
    """The Secret that data buffers know each other by."""
    return f"{job}-token"


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


_POD_NAME = re.compile(r"(.+)-a(\d+)")


def parse_pod_name(name: str) -> PodName | None:
    """The reverse of `pod_name`; None for what is no pod's name of ours."""
    found = _POD_NAME.fullmatch(name)
    return None if found is None else PodName(found[1], int(found[2]))


def pod_group_name(job: str, attempt: int) -> str:
    """The gang of one attempt."""
    return f"{job}-a{attempt}"


def workload_name(job: str) -> str:
    """Kueue's Workload, which outlives attempts: quota is held while the gang restarts."""
    return f"rljob-{job}"


def peers_template(job: str, namespace: str, port: int) -> str:
    """Where data buffers are, as a str.format template over `job`, `group` and `host`."""
    return f"{{job}}-{{group}}-{{host}}.{service_name(job)}.{namespace}.svc:{port}"
