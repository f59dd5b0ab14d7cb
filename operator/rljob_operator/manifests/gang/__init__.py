"""Gang schedulers and queues, one file each."""

from rljob_operator.manifests.gang.gang import Admission, AdmissionState, Gang, Readiness, Reference
from rljob_operator.manifests.gang.kueue_workload import QueuePriority
from rljob_operator.manifests.gang.select import Unserved, select

__all__ = [
    "Admission",
    "AdmissionState",
    "Gang",
    "QueuePriority",
    "Readiness",
    "Reference",
    "Unserved",
    "select",
]
