"""Who is here, and what keeps the hosts from running together. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from rljob_api.v1alpha1 import RLJob
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Hello

MAX_NAMED = 8
"""Hosts that a message names."""


def sections_of(job: RLJob) -> dict[str, str]:
    """A digest of each section of the spec, by its name in YAML."""
    texts = {name: json.dumps(value, sort_keys=True) for name, value in job.spec.to_json().items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Expected:
    """What host 0 is, and all others have to be."""

    num_hosts: int
    version: str
    job: str
    sections: dict[str, str]
    plan: str
    """The plan's hash."""


def flaws_of(hello: Hello, expected: Expected) -> list[str]:
    """What is wrong with a host, the host named; nothing where it can take part."""
    return [f"host {hello.host} ({hello.name}) {flaw}" for flaw in _flaws(hello, expected)]


def _flaws(hello: Hello, expected: Expected) -> list[str]:
    """The first that explains the others; all that the host itself has found."""
    if hello.version != expected.version:
        return [f"has rljob {hello.version}, host 0 has {expected.version}: install the same on all hosts"]
    if hello.flaws:
        return [f"cannot run its pod: {flaw}" for flaw in hello.flaws]
    if hello.num_hosts != expected.num_hosts:
        count = f"was started with {hello.num_hosts} hosts, host 0 of {expected.num_hosts}"
        return [f"{count}: give all launchers the same number of hosts"]
    if hello.job != expected.job:
        fix = "launch the same file on all, or give one of the jobs another MASTER_PORT"
        return [f"launches the job {hello.job}, host 0 {expected.job}: {fix}"]
    names = sorted(expected.sections.keys() | hello.sections.keys())
    differing = [name for name in names if expected.sections.get(name) != hello.sections.get(name)]
    if differing:
        listed = ", ".join(f"spec.{name}" for name in differing)
        return [f"has another job file, or other --set: {listed}; launch the same on all hosts"]
    if hello.plan != expected.plan:
        where = "relative paths, the folder of the job and the models' config.json have to be the same on all hosts"
        return [f"plans the same job otherwise: {where}"]
    return []


def absent_hosts(membership: Membership, here: Collection[int]) -> str:
    """`2 of 16 hosts: host 3 (gpu04), host 9 (gpu10)`; empty where nobody is missing."""
    absent = [host for host in range(membership.num_hosts) if host not in here]
    if not absent:
        return ""
    named = ", ".join(membership.called(host) for host in absent[:MAX_NAMED])
    more = f" and {len(absent) - MAX_NAMED} more" if len(absent) > MAX_NAMED else ""
    return f"{len(absent)} of {membership.num_hosts} hosts: {named}{more}"


def flaw_lines(flaws: Collection[str]) -> str:
    """At most as many as a person reads."""
    shown = list(flaws)[:MAX_NAMED]
    more = [f"and {len(flaws) - MAX_NAMED} more hosts"] if len(flaws) > MAX_NAMED else []
    return "\n".join([*shown, *more])
