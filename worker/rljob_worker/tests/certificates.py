"""Certificates for the data buffers of a test, as the supervisor of a run issues and a host writes them."""

from datetime import UTC, datetime
from pathlib import Path

from rljob_api.certificates import issue
from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.routes.hosts import guests_of, hosts_of
from rljob_worker.local.pods.certificates import write_issued
from rljob_worker.local.pods.environment import LOOPBACK


def issue_here(plan: Plan, attempt: int, directory: Path) -> None:
    """Certificates for every host of the plan, and all guests that there may be, each in a directory of its own."""
    hosts = {str(host): (LOOPBACK,) for host in (*hosts_of(plan), *guests_of(plan))}
    write_issued(issue(plan.job, attempt, hosts, datetime.now(UTC)), directory)
