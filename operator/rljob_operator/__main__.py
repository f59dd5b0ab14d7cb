"""`python -m rljob_operator --config /etc/rljob/operator.yaml`."""

from __future__ import annotations

import secrets
import sys
import time

from rljob_api.catalogue.profiles import profiles_from
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.inspection.job_store import JobStore
from rljob_operator.process.command import run_command
from rljob_operator.process.leader import Reconcile, ReconcilerContext
from rljob_operator.reconcile import Reconciler
from rljob_operator.rules import Rules


def make_reconcile(context: ReconcilerContext) -> Reconcile:
    """The reconcile of RLJobs, as the settings say."""
    settings = context.settings
    rules = Rules(
        profiles=profiles_from(settings.profiles),
        pods=settings.pods,
        ceilings=settings.ceilings,
        heal_interval_seconds=settings.queue.heal_seconds,
    )
    served = context.served
    recent = Recent(context.cluster, time.monotonic)
    schedulers = Schedulers(recent, lambda: served.versions)
    gangs = GangProviders(context.cluster, recent, schedulers, context.queue_watch)
    return Reconciler(
        cluster=context.cluster,
        jobs=JobStore(context.cluster, context.heard.of),
        pods=context.pods,
        progress=context.progress,
        rules=rules,
        metrics=context.metrics.jobs,
        gangs=gangs,
        ray_services=context.ray_watch,
        event_writer=context.event_writer,
        clock=time.time,
        new_token=lambda: secrets.token_urlsafe(32),
    ).reconcile


if __name__ == "__main__":
    sys.exit(run_command(make_reconcile))
