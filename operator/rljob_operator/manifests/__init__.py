"""Children of a job as plain data.  Pure: nothing here speaks to a cluster."""

from rljob_operator.manifests.children import child_problems, pod_security_problem, static_children
from rljob_operator.manifests.configmaps import rank_tables
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.pod.pods import pods
from rljob_operator.manifests.secrets import tls_secret, token_secret
from rljob_operator.manifests.settings import PodSettings

__all__ = [
    "JobContext",
    "Manifest",
    "Placement",
    "PodSettings",
    "child_problems",
    "pod_security_problem",
    "pods",
    "rank_tables",
    "static_children",
    "tls_secret",
    "token_secret",
]
