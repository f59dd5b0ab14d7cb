"""The chart as helm renders it.  Run by `make chart-test`: helm and its unit-test runner are built on first use."""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.published_pods import TABLE, published, table
from charts.tests.kubernetes_schemas import LOCATION, write_schemas
from charts.values.__main__ import CHART
from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.go_programs import KUBERNETES_VERSION, module_folder, program
from rljob_api.catalogue.profiles import profiles_from
from rljob_api.vocabulary import keys
from rljob_operator.cluster import kinds
from rljob_operator.manifests.monitoring import TARGET_LABELS
from rljob_operator.process.settings import OperatorSettings, load_settings

Manifest = dict[str, Any]

CI_VALUES = [*sorted((CHART / "ci").glob("*-values.yaml")), CHART.parents[1] / "e2e" / "values.yaml"]
EVERYTHING = CHART / "ci" / "everything-values.yaml"
MIRROR = CHART / "ci" / "mirror-values.yaml"
NAMESPACED = CHART / "ci" / "namespaced-values.yaml"
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def helm(*words: str | Path) -> str:
    return run(program("helm"), *words)


@cache
def rendered(*words: str | Path) -> tuple[Manifest, ...]:
    text = helm("template", "rl", CHART, "-n", "rljob-system", "--kube-version", KUBERNETES_VERSION, *words)
    return tuple(item for item in yaml.safe_load_all(text) if item)


def with_values(path: Path) -> tuple[Manifest, ...]:
    return rendered("--values", path)


def only(manifests: tuple[Manifest, ...], kind: str, name: str = "rl-rljob") -> Manifest:
    (result,) = (
        manifest for manifest in manifests if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    )
    return result


def settings_of(manifests: tuple[Manifest, ...], folder: Path) -> OperatorSettings:
    path = folder / "operator.yaml"
    path.write_text(only(manifests, "ConfigMap")["data"]["operator.yaml"])
    return load_settings(path)


def test_templates_say_what_their_unit_tests_say() -> None:
    run(program("helm-unittest"), "--strict", CHART)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(module_folder("kube-apiserver") / "api/openapi-spec/swagger.json", folder)
    return folder


def conform(schemas: Path, manifests: tuple[Manifest, ...]) -> str:
    """What kubeconform says of them; the kinds of the Prometheus operator are not Kubernetes' own."""
    options = ("-strict", "-summary", "-schema-location", f"{schemas}/{LOCATION}", "-skip", "PodMonitor,PrometheusRule")
    return run(program("kubeconform"), *options, "-", input=yaml.safe_dump_all(manifests))


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_every_object_is_one_of_kubernetes(schemas: Path, path: Path) -> None:
    assert "Invalid: 0, Errors: 0" in conform(schemas, with_values(path))


def test_a_misspelt_field_of_an_object_is_found(schemas: Path) -> None:
    deployment = copy.deepcopy(only(rendered(), "Deployment"))
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(CommandFailed, match="imagePolicy"):
        conform(schemas, (deployment,))


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing_to_complain_of(path: Path) -> None:
    helm("lint", "--strict", "--kube-version", KUBERNETES_VERSION, CHART, "--values", path)


def test_the_operator_reads_the_settings_that_it_would_have_without_a_chart(tmp_path: Path) -> None:
    result, plain = settings_of(rendered(), tmp_path), OperatorSettings()
    for name in ("api", "queue", "progress", "probes", "namespaces", "metrics_port", "probe_port", "log_level"):
        assert getattr(result, name) == getattr(plain, name), name
    assert (result.lease.name, result.lease.namespace) == ("rl-rljob", "rljob-system")
    assert result.pods.worker == plain.pods.worker


def test_the_operator_reads_everything_that_can_be_set(tmp_path: Path) -> None:
    settings = settings_of(with_values(EVERYTHING), tmp_path)
    assert (settings.api.requests_per_second, settings.api.burst, settings.log_format) == (200, 400, "Json")
    images = settings.pods.images
    assert images.worker == "registry.example/rljob-worker@sha256:" + "0123456789abcdef" * 4
    assert images.data_buffer == "registry.example/rljob-databuffer:0.1.0"
    assert images.pull_secrets == ("mirror", "extra")
    assert settings.pods.monitoring.labels == {"release": "prometheus"}
    assert settings.pods.gang.native and settings.pods.ray_services
    profiles = profiles_from(settings.profiles)
    assert profiles["ascend-910"].schedulers == ()
    assert profiles["nvidia-l4"].resource == "nvidia.com/gpu"


def test_jobs_admit_the_operator_and_those_who_scrape(tmp_path: Path) -> None:
    policy = settings_of(with_values(EVERYTHING), tmp_path).pods.network_policy
    assert policy.enabled
    (kube_ray,) = policy.kube_ray_from
    assert kube_ray["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    operator, prometheus = policy.metrics_from
    assert operator == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/instance": "rl"}},
    }
    assert operator["podSelector"]["matchLabels"].items() <= (
        only(with_values(EVERYTHING), "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    )
    assert prometheus == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


@pytest.mark.parametrize(
    ("words", "place", "complaint"),
    [
        (("operator.replica=2",), "/operator", "'replica' not allowed"),
        (("settings.api.requestPerSecond=5",), "/settings/api", "'requestPerSecond' not allowed"),
        (("settings.queue.workers=0",), "/settings/queue/workers", "minimum"),
        (("settings.logLevel=Loud",), "/settings/logLevel", "must be one of"),
        (("settings.pods.images.worker=x",), "/settings/pods", "'images' not allowed"),
        (("images.operator.digest=sha256:12",), "/images/operator/digest", "does not match pattern"),
        (("images.worker.repository=w@sha256:12",), "/images/worker/repository", "does not match pattern"),
        (("images.worker.repository=rljob-worker:1",), "/images/worker/repository", "does not match pattern"),
        (
            ("acceleratorProfiles.npu.image=npu@sha256:12",),
            "/acceleratorProfiles/npu/image",
            "does not match pattern",
        ),
        (("images.operator.repository=",), "/images/operator/repository", "does not match pattern"),
        (("operator.replicas=many",), "/operator/replicas", "want integer"),
        (("acceleratorProfiles.mine.resourse=a/b",), "/acceleratorProfiles/mine", "'resourse' not allowed"),
        (("metrics.podMonitor.interval=often",), "/metrics/podMonitor/interval", "does not match pattern"),
        (("watchNamespaces=a",), "/watchNamespaces", "want array"),
        (("networkpolicy.jobs=true",), "", "'networkpolicy' not allowed"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_a_bad_value_is_refused_where_it_stands(words: tuple[str, ...], place: str, complaint: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        rendered("--set", *words)
    assert f"at '{place}'" in str(caught.value)
    assert complaint in str(caught.value)


def test_values_in_the_guide_are_values(tmp_path: Path) -> None:
    guide = (CHART.parents[1] / "docs/kubernetes.md").read_text()
    blocks = re.findall(r"(?m)^(?:acceleratorProfiles|global):.*\n(?:  .*\n)*", guide)
    (tmp_path / "values.yaml").write_text("".join(blocks))
    settings = settings_of(with_values(tmp_path / "values.yaml"), tmp_path)
    assert settings.pods.images.pull_secrets == ("mirror",)
    assert profiles_from(settings.profiles)["my-npu"].device == "npu"


def test_what_another_chart_says_to_all_its_parts_is_no_mistake() -> None:
    rendered("--set", "global.storageClass=fast")


def rules_of(manifests: tuple[Manifest, ...]) -> list[Manifest]:
    return [rule for manifest in manifests if manifest["kind"] in ("Role", "ClusterRole") for rule in manifest["rules"]]


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_no_right_is_for_everything(path: Path) -> None:
    rules = rules_of(with_values(path))
    assert rules
    for rule in rules:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert "impersonate" not in rule["verbs"] and "escalate" not in rule["verbs"] and "bind" not in rule["verbs"]


RIGHT_TO_READ = {kinds.RESOURCE_QUOTA: "list"}  # nobody names them
READ = [kind for kind in kinds.ALL if kind is not kinds.EVENT]  # events are written and never read


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.resource)
def test_the_operator_may_read_every_kind_that_it_knows(kind: kinds.ResourceKind) -> None:
    granted = {
        (group, resource)
        for rule in rules_of(with_values(EVERYTHING))
        if RIGHT_TO_READ.get(kind, "get") in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert (kind.group, kind.plural) in granted


def test_in_namespaces_of_its_own_nothing_is_cluster_wide() -> None:
    manifests = with_values(NAMESPACED)
    assert not [manifest["kind"] for manifest in manifests if manifest["kind"] in CLUSTER_SCOPED]
    homes = {manifest["metadata"]["namespace"] for manifest in manifests}
    assert homes == {"rljob-system", "team-a", "team-b"}
    subjects = {manifest["subjects"][0]["name"] for manifest in manifests if manifest["kind"] == "RoleBinding"}
    assert subjects == {"mine"}


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_every_object_bears_the_labels_of_its_release(path: Path) -> None:
    for with_value in with_values(path):
        if with_value["metadata"]["name"] == "rl-extra":
            continue
        assert with_value["metadata"]["labels"]["app.kubernetes.io/instance"] == "rl", with_value["metadata"]["name"]
        assert ("namespace" in with_value["metadata"]) != (with_value["kind"] in CLUSTER_SCOPED), with_value[
            "metadata"
        ]["name"]


def test_at_a_site_without_a_way_out_every_image_is_of_the_mirror(tmp_path: Path) -> None:
    manifests = with_values(MIRROR)
    images = settings_of(manifests, tmp_path).pods.images
    container = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    listed = [line.rpartition(":")[0] for line in (CHART / "files/images.txt").read_text().splitlines()]
    workers = [images.worker, images.worker_cpu]
    others = [images.serve, images.serve_cuda, images.worker_vllm, images.worker_vllm_cpu]
    result = [container["image"], images.data_buffer, *workers, *others]
    assert result == [f"mirror.example/rl/{name}:stable" for name in listed]
    assert container["imagePullPolicy"] == images.pull_policy == "Always"


def test_jobs_are_scraped_with_the_labels_that_their_own_monitors_give() -> None:
    monitor = only(with_values(EVERYTHING), "PodMonitor", "rl-rljob-workers")
    assert monitor["spec"]["selector"]["matchLabels"] == {
        keys.LABEL_MANAGED_BY: keys.MANAGED_BY_VALUE,
        keys.LABEL_COMPONENT: keys.CONTAINER_WORKER,
    }
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == ["metrics", "buffer-metrics"]
    for endpoint in endpoints:
        result = {item["targetLabel"]: item["sourceLabels"] for item in endpoint["relabelings"]}
        meta = "__meta_kubernetes_pod_label_"
        assert result == {
            name: [meta + label.replace(".", "_").replace("/", "_").replace("-", "_")]
            for name, label in TARGET_LABELS.items()
        }


def test_progress_is_reached_where_workers_serve_it() -> None:
    policy = only(with_values(EVERYTHING), "NetworkPolicy")
    assert policy["spec"]["egress"][2]["ports"] == [{"protocol": "TCP", "port": keys.PORT_WORKER_METRICS}]


def test_the_published_pods_are_those_of_the_module() -> None:
    assert table(published()) == TABLE.read_text(), "run `python -m charts.published_pods`"
