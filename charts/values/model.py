"""`Values`: everything that an administrator may set when the chart is installed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.vocabulary.model import ApiModel, Items
from rljob_operator.process.settings import OperatorSettings

Peer = dict[str, Any]
"""A peer of a NetworkPolicy: namespaceSelector, podSelector, ipBlock."""

PORT = {"ge": 1, "le": 65535}


class GlobalValues(ApiModel):
    """What a chart that has this one as a part sets for all its parts."""

    model_config = ConfigDict(extra="allow")

    image_registry: str = ""
    """Registry of every image, instead of the ones below."""

    image_pull_secrets: Items[str] = ()
    """Secrets with which images are pulled, besides images.pullSecrets."""


class ImageValues(ApiModel):
    """One image."""

    repository: str = Field(pattern=r"^([a-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*$")
    """Its name within the registry, without tag and digest, which have fields of their own."""

    registry: str = ""
    """Its registry. Empty: images.registry."""

    tag: str = ""
    """Its tag. Empty: images.tag."""

    digest: str = Field(default="", pattern=r"^(sha256:[0-9a-f]{64})?$")
    """Its digest, such as sha256:…, which goes before any tag. Empty: none."""


class ImagesValues(ApiModel):
    """The images; files/images.txt lists them for a mirror."""

    registry: str = ""
    """Registry of the images below. Empty: what the nodes take for theirs."""

    tag: str = ""
    """Tag of the images below. Empty: the chart's appVersion."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes pull them."""

    pull_secrets: Items[str] = ()
    """Secrets with which they are pulled. Those of a job's pods are looked up in the job's namespace."""

    operator: ImageValues = ImageValues(repository="rljob-operator")
    """The operator."""

    data_buffer: ImageValues = ImageValues(repository="rljob-databuffer")
    """The data buffer, a sidecar of every worker."""

    worker: ImageValues = ImageValues(repository="rljob-worker")
    """Workers on NVIDIA accelerators; a profile may name another."""

    worker_cpu: ImageValues = ImageValues(repository="rljob-worker-cpu")
    """Workers on CPUs. It carries what the examples need."""

    serve: ImageValues = ImageValues(repository="rljob-serve")
    """Models served beside a job, on CPUs."""

    serve_cuda: ImageValues = ImageValues(repository="rljob-serve-cuda")
    """Models served beside a job, on NVIDIA accelerators; a profile may name another."""

    worker_vllm: ImageValues = ImageValues(repository="rljob-worker-vllm")
    """Workers on NVIDIA accelerators that generate with vLLM."""

    worker_vllm_cpu: ImageValues = ImageValues(repository="rljob-worker-vllm-cpu")
    """Workers on CPUs that generate with vLLM."""


class PodDisruptionBudgetValues(ApiModel):
    """How many replicas a drain may take at once."""

    enabled: bool = True
    """Whether there is a PodDisruptionBudget where there is more than one replica."""

    max_unavailable: int | str = 1
    """How many replicas may be gone, as a number or a percentage."""


class ServiceAccountValues(ApiModel):
    """Who the operator is to the API server."""

    create: bool = True
    """Whether the chart makes the account."""

    name: str = ""
    """Its name. Empty: the release's."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Its annotations, such as those by which a cloud gives it a role."""


class OperatorValues(ApiModel):
    """The operator's pods."""

    replicas: int = Field(default=1, ge=0)
    """Pods, of which one works and the others wait for its Lease."""

    resources: dict[str, Any] = Field(
        default={"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}}
    )
    """Requests and limits. 200 MiB are enough for jobs of 1,024 pods."""

    pod_disruption_budget: PodDisruptionBudgetValues = PodDisruptionBudgetValues()
    """How many replicas a drain may take at once."""

    service_account: ServiceAccountValues = ServiceAccountValues()
    """Who the operator is to the API server."""

    priority_class_name: str = ""
    """The pods' priority class. Empty: the cluster's default."""

    node_selector: dict[str, str] = Field(default={"kubernetes.io/os": "linux"})
    """Labels of the nodes it may run on."""

    tolerations: Items[dict[str, Any]] = ()
    """Taints that it tolerates."""

    affinity: dict[str, Any] = Field(default_factory=dict)
    """Affinities."""

    topology_spread_constraints: Items[dict[str, Any]] = ()
    """How replicas are spread."""

    pod_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the pods besides the chart's."""

    pod_annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the pods."""

    pod_security_context: dict[str, Any] = Field(
        default={
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    )
    """Security context of the pod; the default meets the restricted Pod Security Standard."""

    security_context: dict[str, Any] = Field(
        default={
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    )
    """Security context of the container."""

    env: Items[dict[str, Any]] = ()
    """Environment of the container, as in a pod."""

    termination_grace_period_seconds: int = Field(default=30, ge=1)
    """How long it may take to finish what is under way; longer than settings.queue.stopSeconds."""


class CrdsValues(ApiModel):
    """The CustomResourceDefinition of RLJob."""

    enabled: bool = True
    """Whether the chart installs and upgrades it. false: somebody applies crds/rljobs.rljob.dev.yaml."""

    keep: bool = True
    """Whether it, and with it every job, survives `helm uninstall`."""


class RbacValues(ApiModel):
    """Rights."""

    create: bool = True
    """Whether the chart makes the operator's roles: for the whole cluster, or in each of watchNamespaces."""

    cluster_reads: bool = True
    """Whether it may read storage classes, priority classes and Kueue's flavors, which no namespace holds. Without it
    jobs cannot wait in Kueue's queues, and a claim that waits for its first pod counts as not bound."""

    read_secrets: bool = True
    """Whether it may read Secrets, one by one and by name: to say that one that a variable comes from is not there, and
    that the token of a job is nobody else's. Without it kubelets say the one, and nobody the other."""

    user_roles: bool = True
    """Whether there are ClusterRoles to view and to edit jobs, which Kubernetes adds to `view`, `edit` and `admin`."""


class IntegrationsValues(ApiModel):
    """What the operator may write besides core objects. Each adds rights; switch off what the cluster must not let
    it touch."""

    kueue: bool = True
    """Workloads of Kueue, for jobs that wait in its queues."""

    volcano: bool = True
    """PodGroups of Volcano."""

    coscheduling: bool = True
    """PodGroups of the coscheduling plugin."""

    native: bool = False
    """Workloads of Kubernetes' own workload API, whose version changes still. Also lets `provider: Auto` choose it."""

    kuberay: bool = False
    """RayServices of KubeRay 1.5 or later, which then serve the models beside jobs, a pod for each copy, in place of
    one pod for each model. To be changed while no job with services runs."""

    pod_monitors: bool = True
    """PodMonitors of jobs that say `monitoring.podMonitor: true`."""


class PodMonitorValues(ApiModel):
    """Who scrapes what; needs the Prometheus operator."""

    operator: bool = False
    """Whether there is a PodMonitor for the operator."""

    workers: bool = False
    """Whether there is one for the pods of every job. Jobs then need none of their own."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels by which a Prometheus selects it, such as `release: kube-prometheus-stack`; also of jobs' own."""

    interval: str = Field(default="15s", pattern=r"^[0-9]+(ms|s|m)$")
    """How often pods are scraped; also those with a PodMonitor of their own."""


class PrometheusRuleValues(ApiModel):
    """Alerts; needs the Prometheus operator."""

    enabled: bool = False
    """Whether there is a PrometheusRule."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels by which a Prometheus selects it."""


class MetricsServiceValues(ApiModel):
    """A Service in front of the operator's metrics."""

    enabled: bool = True
    """Whether there is one."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Its annotations."""


class MetricsValues(ApiModel):
    """Prometheus."""

    service: MetricsServiceValues = MetricsServiceValues()
    """A Service in front of the operator's metrics."""

    pod_monitor: PodMonitorValues = PodMonitorValues()
    """Who scrapes what."""

    prometheus_rule: PrometheusRuleValues = PrometheusRuleValues()
    """Alerts."""


class DashboardsValues(ApiModel):
    """Grafana's dashboards, a ConfigMap each."""

    enabled: bool = False
    """Whether there are any."""

    namespace: str = ""
    """Where they are. Empty: the release's namespace."""

    label: str = Field(default="grafana_dashboard", min_length=1)
    """The label by which Grafana's sidecar finds them."""

    label_value: str = "1"
    """Its value."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Their annotations, such as the one that names a folder."""


class NetworkPolicyValues(ApiModel):
    """Who may talk to whom; needs a network that enforces it. RDMA and host networks know nothing of it."""

    operator: bool = False
    """Whether the operator's pods are closed but to the scrapers below, and reach nothing but the API server, DNS and
    jobs."""

    jobs: bool = True
    """Whether the pods of each job are closed but to each other, and to the operator and the scrapers below."""

    scrapers: Items[Peer] = ()
    """Who may read metrics, as peers of a NetworkPolicy. Empty: nobody but the operator."""

    kuberay: Items[Peer] = (
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}},
    )
    """Who may ask the Ray of models beside a job how it is, as peers of a NetworkPolicy: KubeRay's operator."""

    api_server_ports: Items[int] = (443, 6443)
    """Ports of the API server, before and behind its Service."""


class ChartValues(ApiModel):
    """The chart's values."""

    global_: GlobalValues = Field(default=GlobalValues(), alias="global")
    """What a chart that has this one as a part sets for all its parts."""

    name_override: str = ""
    """The chart's name in labels and names of objects. Empty: rljob."""

    fullname_override: str = ""
    """The name of objects. Empty: release and chart."""

    common_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of every object."""

    images: ImagesValues = ImagesValues()
    """The images."""

    operator: OperatorValues = OperatorValues()
    """The operator's pods."""

    watch_namespaces: Items[str] = ()
    """Namespaces whose jobs are run, with rights in these alone. Empty: all."""

    settings: OperatorSettings = OperatorSettings()
    """The operator's settings, besides what the rest of this file says."""

    accelerator_profiles: dict[str, AcceleratorProfile] = Field(default_factory=dict)
    """Accelerator profiles by name: new ones, or fields of those that come with rljob."""

    integrations: IntegrationsValues = IntegrationsValues()
    """What the operator may write besides core objects."""

    crds: CrdsValues = CrdsValues()
    """The CustomResourceDefinition."""

    rbac: RbacValues = RbacValues()
    """Rights."""

    metrics: MetricsValues = MetricsValues()
    """Prometheus."""

    dashboards: DashboardsValues = DashboardsValues()
    """Grafana's dashboards."""

    network_policy: NetworkPolicyValues = NetworkPolicyValues()
    """Who may talk to whom."""

    extra_objects: Items[dict[str, Any]] = ()
    """Objects that are installed with the chart; templates in them are filled in."""


ELSEWHERE = (
    "settings.namespaces",
    "settings.profiles",
    "settings.lease.name",
    "settings.lease.namespace",
    "settings.bindAddress",
    "settings.probePort",
    "settings.metricsPort",
    "settings.pods.images",
    "settings.pods.monitoring",
    "settings.pods.networkPolicy",
    "settings.pods.gang.native",
    "settings.pods.rayServices",
)
"""Settings that templates/configmap.yaml makes from other values, or that nothing in a pod is a reason to change."""
