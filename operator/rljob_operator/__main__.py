"""`python -m rljob_operator --config /etc/rljob/operator.yaml`."""

from __future__ import annotations

import secrets
import sys
import time

from rljob_api.catalogue.profiles import profiles_from
from rljob_operator.gangs.reading import Gangs
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.process.command import run_command
from rljob_operator.process.leader import Reconcile, Surroundings
from rljob_operator.reconcile import Reconciler
from rljob_operator.rules import Rules
from rljob_operator.surveying.job import Jobs


def make_reconcile(surroundings: Surroundings) -> Reconcile:
    """The reconcile of RLJobs, as the settings say."""
    settings = surroundings.settings
    rules = Rules(
        profiles=profiles_from(settings.profiles),
        pods=settings.pods,
        ceilings=settings.ceilings,
        heal_interval_seconds=settings.queue.heal_seconds,
    )
    served = surroundings.served
    recent = Recent(surroundings.cluster, time.monotonic)
    schedulers = Schedulers(recent, lambda: served.versions)
    gangs = Gangs(surroundings.cluster, recent, schedulers, surroundings.queue_watch)
    return Reconciler(
        cluster=surroundings.cluster,
        jobs=Jobs(surroundings.cluster, surroundings.heard.of),
        pods=surroundings.pods,
        progress=surroundings.progress,
        rules=rules,
        metrics=surroundings.metrics.jobs,
        gangs=gangs,
        ray_services=surroundings.ray_watch,
        teller=surroundings.teller,
        clock=time.time,
        new_token=lambda: secrets.token_urlsafe(32),
    ).reconcile


if __name__ == "__main__":
    sys.exit(run_command(make_reconcile))
