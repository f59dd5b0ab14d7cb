"""Which of Kueue's queues a job waits in."""

from __future__ import annotations

from rljob_operator.manifests.context import JobContext

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def names_queue(context: JobContext) -> bool:
    """Whether the job asks for Kueue: by its label, as every other kind of job does, or by name."""
    return QUEUE_LABEL in context.job.metadata.labels or context.spec.scheduling.provider == "Kueue"


def is_queued(context: JobContext) -> bool:
    """Whether Kueue has a job that may be given to it: one that asks, or any where a queue is given to all."""
    automatic = context.spec.scheduling.provider == "Auto"
    return names_queue(context) or (automatic and bool(context.queues.default or context.queues.required))


def queue_of(context: JobContext) -> str | None:
    """The LocalQueue: the job's label, as for every other kind of job, `scheduling.queue`, or the default one."""
    own = context.job.metadata.labels.get(QUEUE_LABEL) or context.spec.scheduling.queue
    return own or context.queues.default or None
