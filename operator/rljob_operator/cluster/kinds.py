"""The kinds of objects that the operator reads or writes, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.vocabulary import keys


@dataclass(frozen=True)
class ResourceKind:
    """One kind of object.  `group` is empty for the core API; `plural` is the kind's spelling in paths and in RBAC."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    stays_with_its_own: bool = False
    """Whether a deleted one stays until all that it owns is gone."""

    @property
    def api_version(self) -> str:
        """As in a manifest: `v1`, `coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As in an RBAC message: `pods`, `rljobs.rljob.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of one object, or of the collection when `name` is None, over all namespaces when `namespace`
        is."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


RLJOB = ResourceKind(keys.GROUP, keys.VERSION, keys.KIND, keys.PLURAL)
POD = ResourceKind("", "v1", "Pod", "pods")
SERVICE = ResourceKind("", "v1", "Service", "services")
CONFIG_MAP = ResourceKind("", "v1", "ConfigMap", "configmaps")
SECRET = ResourceKind("", "v1", "Secret", "secrets")
PERSISTENT_VOLUME_CLAIM = ResourceKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
RESOURCE_QUOTA = ResourceKind("", "v1", "ResourceQuota", "resourcequotas")
NAMESPACE = ResourceKind("", "v1", "Namespace", "namespaces", namespaced=False)
STORAGE_CLASS = ResourceKind("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
EVENT = ResourceKind("", "v1", "Event", "events")
LEASE = ResourceKind("coordination.k8s.io", "v1", "Lease", "leases")
NETWORK_POLICY = ResourceKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR = ResourceKind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors")
POD_GROUP_VOLCANO = ResourceKind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
POD_GROUP_COSCHEDULING = ResourceKind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
POD_GROUP_NATIVE = ResourceKind("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups")
DEPLOYMENT = ResourceKind("apps", "v1", "Deployment", "deployments")
RAY_SERVICE = ResourceKind("ray.io", "v1", "RayService", "rayservices", stays_with_its_own=True)
PRIORITY_CLASS = ResourceKind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
WORKLOAD_PRIORITY_CLASS = ResourceKind(
    "kueue.x-k8s.io", "v1beta1", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False
)
WORKLOAD_KUEUE = ResourceKind("kueue.x-k8s.io", "v1beta1", "Workload", "workloads")
WORKLOAD_KUEUE_V1BETA2 = ResourceKind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
RESOURCE_FLAVOR = ResourceKind("kueue.x-k8s.io", "v1beta1", "ResourceFlavor", "resourceflavors", namespaced=False)
RESOURCE_FLAVOR_V1BETA2 = ResourceKind(
    "kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False
)

API_GROUP = ResourceKind("", "", "APIGroup", "apis", namespaced=False)
"""What the API server has; not stored anywhere."""

ALL: tuple[ResourceKind, ...] = (
    RLJOB,
    POD,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    PERSISTENT_VOLUME_CLAIM,
    RESOURCE_QUOTA,
    NAMESPACE,
    STORAGE_CLASS,
    EVENT,
    LEASE,
    NETWORK_POLICY,
    POD_MONITOR,
    POD_GROUP_VOLCANO,
    POD_GROUP_COSCHEDULING,
    POD_GROUP_NATIVE,
    DEPLOYMENT,
    RAY_SERVICE,
    WORKLOAD_KUEUE,
    WORKLOAD_KUEUE_V1BETA2,
    PRIORITY_CLASS,
    WORKLOAD_PRIORITY_CLASS,
    RESOURCE_FLAVOR,
    RESOURCE_FLAVOR_V1BETA2,
)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in ALL}


def resource_kind_of(manifest: dict[str, object]) -> ResourceKind:
    """The kind that `apiVersion` and `kind` of a manifest name; a KeyError for one that is not listed here."""
    return _BY_NAME[str(manifest["apiVersion"]), str(manifest["kind"])]
