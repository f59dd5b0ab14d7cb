"""Tests of the manifests of worker pods."""

import hashlib
from types import SimpleNamespace

import pytest

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.process_environment import MALLOC_KEEPS_MEMORY
from rljob_operator.manifests import Placement, child_problems, pods, rank_tables, static_children, token_secret
from rljob_operator.manifests.pod.containers import worker_image
from rljob_operator.manifests.tests.builders import (
    TWO_GROUPS,
    UID,
    buffer_of,
    env_of,
    make_context,
    named,
    one_group,
    worker_of,
)

STORE = "storage={objectStore: {uri: 's3://bucket/runs/', secret: store}}"


def only_pod(*overrides, **options):
    (pod,) = pods(make_context(*overrides, **options), 1)
    return pod


def test_one_pod_per_host_of_each_group():
    rendered = pods(make_context(TWO_GROUPS), 3)
    assert [pod["metadata"]["name"] for pod in rendered] == [
        "small-train-0-a3", "small-train-1-a3",
        "small-rollout-0-a3", "small-rollout-1-a3", "small-rollout-2-a3", "small-rollout-3-a3",
    ]  # fmt: skip
    last = rendered[-1]
    assert (last["spec"]["hostname"], last["spec"]["subdomain"]) == ("small-rollout-3", "small")
    who = [last["metadata"]["labels"][key] for key in (keys.LABEL_GROUP, keys.LABEL_HOST_INDEX, keys.LABEL_ATTEMPT)]
    assert who == ["rollout", "3", "3"]
    assert last["metadata"]["ownerReferences"][0]["uid"] == UID


def test_both_containers_get_their_identity():
    pod = pods(make_context(TWO_GROUPS), 2)[1]
    worker, data_buffer = env_of(worker_of(pod)), env_of(buffer_of(pod))
    for env in (worker, data_buffer):
        assert (env["RLJOB_GROUP"], env["RLJOB_HOST_INDEX"], env["RLJOB_ATTEMPT"]) == ("train", "1", "2")
        address = env["RLJOB_PEERS"].format(job="small", group="rollout", host=3)
        assert address == "small-rollout-3.small.team.svc:8815"
    assert (worker["RLJOB_METRICS_PORT"], data_buffer["RLJOB_METRICS_PORT"]) == ("9400", "9401")
    assert (worker["RLJOB_RUN_ID"], worker["RLJOB_RUN_DIR"]) == (UID, "/workspace/runs/small")


@pytest.mark.parametrize(
    ("overrides", "attempt", "resume"),
    [((), 1, "auto"), (("checkpoint.resume=Never",), 1, "never"), (("checkpoint.resume=Never",), 2, "auto")],
)
def test_only_the_first_attempt_refuses_an_earlier_run(overrides, attempt, resume):
    assert env_of(worker_of(pods(make_context(*overrides), attempt)[0]))["RLJOB_RESUME"] == resume


@pytest.mark.parametrize(
    ("overrides", "checkpoints"),
    [
        ((one_group(replicas=1),), "on"),
        ((one_group(replicas=2),), "off"),
        ((TWO_GROUPS,), "off"),
        ((one_group(replicas=2), "storage={persistentVolumeClaim: team-a}"), "on"),
        ((one_group(replicas=2), STORE), "on"),
    ],
)
def test_checkpoints_need_storage_that_all_pods_share(overrides, checkpoints):
    assert env_of(worker_of(pods(make_context(*overrides), 1)[0]))["RLJOB_CHECKPOINTS"] == checkpoints


def test_workers_get_the_store_its_credentials_and_a_folder_of_their_own_and_data_buffers_nothing():
    pod = pods(make_context(STORE), 1)[0]
    assert env_of(worker_of(pod))["RLJOB_RUN_HOME"] == "s3://bucket/runs/team/small"
    assert worker_of(pod)["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "envFrom" not in buffer_of(pod) and "RLJOB_RUN_HOME" not in env_of(buffer_of(pod))
    mounts = {item["name"] for item in worker_of(pod)["volumeMounts"]}
    assert "runs" in mounts and "workspace" not in mounts


def test_a_store_that_knows_the_pods_needs_no_secret():
    assert "envFrom" not in worker_of(pods(make_context("storage={objectStore: {uri: 's3://bucket'}}"), 1)[0])


def test_without_storage_results_go_beside_what_the_image_carries():
    mounts = {item["name"]: item["mountPath"] for item in worker_of(only_pod())["volumeMounts"]}
    assert mounts["runs"] == "/workspace/runs" and "workspace" not in mounts
    stored = worker_of(only_pod("storage={persistentVolumeClaim: team-a}"))
    mounts = {item["name"]: item["mountPath"] for item in stored["volumeMounts"]}
    assert mounts["workspace"] == "/workspace" and "runs" not in mounts
    assert env_of(stored)["HF_HOME"].startswith("/workspace/")


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("{configMap: mine}", {"configMap": {"name": "mine"}}),
        ("{persistentVolumeClaim: mine}", {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_code_is_mounted_read_only_and_searched_last(code, source):
    pod = only_pod(f"code={code}")
    assert named(pod["spec"]["volumes"], "code") == {"name": "code", **source}
    assert named(worker_of(pod)["volumeMounts"], "code") == {"name": "code", "mountPath": "/code", "readOnly": True}
    assert env_of(worker_of(pod))["RLJOB_CODE"] == "/code:/workspace"
    assert "PYTHONPATH" not in env_of(worker_of(pod))


def test_the_arena_is_charged_to_the_data_buffer_and_devices_to_the_worker():
    pod = only_pod(one_group("nvidia", 2, rdma={"resource": "rdma/hca", "count": 1}), "dataBuffer.memory=2Gi")
    # 2048 MiB of arena and 512 MiB of overhead
    assert buffer_of(pod)["resources"]["limits"] == {"memory": "2560Mi"}
    worker = worker_of(pod)["resources"]
    assert worker["limits"] == {"nvidia.com/gpu": "2", "rdma/hca": "1"}
    # one CPU and 2 GiB for each of two workers
    assert worker["requests"] == {"cpu": "2000m", "memory": "4096Mi", **worker["limits"]}
    assert named(pod["spec"]["volumes"], "arena")["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}


def test_a_spill_volume_has_room_for_its_file_and_both_containers_see_it():
    pod = only_pod("dataBuffer.spill={limit: 64Gi}")
    # 64 GiB, a 64th of it and 16 MiB: a volume beyond its limit would have the pod evicted
    assert named(pod["spec"]["volumes"], "spill") == {"name": "spill", "emptyDir": {"sizeLimit": "66576Mi"}}
    for container in (worker_of(pod), buffer_of(pod)):
        assert named(container["volumeMounts"], "spill") == {"name": "spill", "mountPath": "/spill"}
    assert buffer_of(pod)["resources"]["requests"]["ephemeral-storage"] == "66576Mi"
    assert env_of(buffer_of(pod))["RLJOB_SPILL_DIR"] == "/spill"


@pytest.mark.parametrize("overrides", [(), ("dataBuffer.spill={limit: 64Gi, directory: /nvme}",)])
def test_who_spills_elsewhere_or_not_at_all_gets_no_volume(overrides):
    pod = only_pod(*overrides)
    assert "spill" not in [volume["name"] for volume in pod["spec"]["volumes"]]
    assert set(buffer_of(pod)["resources"]["requests"]) == {"cpu", "memory"}
    assert "RLJOB_SPILL_DIR" not in env_of(buffer_of(pod))


def test_a_template_may_put_a_volume_of_its_own_where_rows_spill():
    claim = {"volumeClaimTemplate": {"spec": {"storageClassName": "local-nvme"}}}
    template = {"spec": {"volumes": [{"name": "spill", "ephemeral": claim}]}}
    pod = only_pod(one_group(template=template), "dataBuffer.spill={limit: 64Gi}")
    assert named(pod["spec"]["volumes"], "spill") == {"name": "spill", "ephemeral": claim}


@pytest.mark.parametrize(("cpu", "threads"), [(None, "1"), ("8", "4"), ("500m", "1"), ("7", "3")])
def test_threads_are_the_workers_share_of_the_cpus_asked_for(cpu, threads):
    containers = [{"name": "worker", "resources": {"requests": {"cpu": cpu}}}] if cpu else []
    pod = only_pod(one_group(count=2, template={"spec": {"containers": containers}}))
    assert env_of(worker_of(pod))["OMP_NUM_THREADS"] == threads


def test_variables_of_site_profile_and_job_win_in_this_order_and_ours_over_all():
    settings = {"env": {"A": "site", "B": "site", "C": "site"}}
    profiles = {"cpu": {"env": {"B": "profile", "C": "profile"}}}
    pod = only_pod("env=[{name: C, value: job}]", settings=settings, profiles=profiles)
    env = env_of(worker_of(pod))
    assert (env["A"], env["B"], env["C"]) == ("site", "profile", "job")
    assert len(worker_of(pod)["env"]) == len(env)


def test_of_the_jobs_variables_a_data_buffer_has_those_that_are_for_it():
    pod = only_pod("env=[{name: RLJOB_BUFFER_RETRY_SECONDS, value: '60'}, {name: HF_TOKEN, value: secret}]")
    env = env_of(buffer_of(pod))
    assert env["RLJOB_BUFFER_RETRY_SECONDS"] == "60" and "HF_TOKEN" not in env


def test_data_buffers_keep_the_memory_of_record_batches_as_workers_keep_theirs():
    pod = only_pod()
    assert MALLOC_KEEPS_MEMORY.items() <= env_of(buffer_of(pod)).items()
    assert MALLOC_KEEPS_MEMORY.items() <= env_of(worker_of(pod)).items()


def test_a_variable_may_come_from_a_secret():
    pod = only_pod("env=[{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]")
    entry = named(worker_of(pod)["env"], "HF_TOKEN")
    assert entry == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token", "optional": False}},
    }


def test_pull_secrets_priority_grace_and_node_failure_reach_the_pod():
    settings = {"images": {"pullSecrets": ["site"]}, "nodeFailureSeconds": 7}
    overrides = ("imagePullSecrets=[mine, site]", "scheduling.priorityClassName=high")
    spec = only_pod(*overrides, "lifecycle.terminationGraceSeconds=99", settings=settings)["spec"]
    assert spec["imagePullSecrets"] == [{"name": "site"}, {"name": "mine"}]
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("high", 99)
    assert {item["tolerationSeconds"] for item in spec["tolerations"]} == {7}


def test_topology_is_an_affinity_to_pods_of_the_same_attempt_and_may_be_an_alias():
    settings = {"topologyAliases": {"rack": "example.com/rack"}}
    context = make_context(one_group(topology={"required": "rack"}), settings=settings)
    (pod,) = pods(context, 4)
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "example.com/rack"
    assert term["labelSelector"]["matchLabels"][keys.LABEL_ATTEMPT] == "4"


def test_a_template_changes_ours_and_may_add_a_container():
    template = {
        "metadata": {"labels": {"team": "rl"}},
        "spec": {
            "containers": [
                {"name": "worker", "image": "mine:1", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                {"name": "profiler", "image": "nsys:1"},
            ]
        },
    }
    pod = only_pod(one_group(template=template))
    assert pod["metadata"]["labels"]["team"] == "rl" and keys.LABEL_JOB in pod["metadata"]["labels"]
    assert [item["name"] for item in pod["spec"]["containers"]] == ["worker", "profiler"]
    worker = worker_of(pod)
    assert worker["image"] == "mine:1" and env_of(worker)["NCCL_DEBUG"] == "INFO"
    assert env_of(worker)["RLJOB_GROUP"] == "train" and worker["resources"]["requests"]["cpu"] == "1000m"


def test_a_queue_says_where_pods_go():
    where = Placement({"pool": "a"}, ({"key": "spot", "operator": "Exists"},), scheduling_gates=("gate",))
    (pod,) = pods(make_context(), 1, placements={"train": where})
    assert pod["spec"]["nodeSelector"] == {"pool": "a"}
    assert {"key": "spot", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert pod["spec"]["schedulingGates"] == [{"name": "gate"}]


def test_the_plan_is_an_immutable_object_of_its_own_name():
    context = make_context()
    plan, service = static_children(context)
    assert plan["metadata"]["name"] == f"small-plan-{context.plan.hash()[:10]}" and plan["immutable"]
    assert plan["data"] == {"plan.json": context.plan.canonical_json()}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]


def test_the_token_of_a_job_is_never_another():
    secret = token_secret(make_context(), "abc")
    assert secret["stringData"].pop("token") == "abc" and secret["immutable"] is True
    # agents of the user's never see the job's own
    (agents,) = secret["stringData"].values()
    assert len(agents) == 64 and "abc" not in agents


def test_a_plan_that_no_config_map_can_hold_is_refused_with_sizes():
    assert child_problems(make_context()) == []
    # 40 variables of 32,000 characters
    variables = ", ".join(f"{{name: V{number}, value: {'x' * 32_000}}}" for number in range(40))
    (problem,) = child_problems(make_context(f"env=[{variables}]"))
    assert "the plan has 1.2 MiB" in problem and "most of it is spec.env" in problem


@pytest.mark.parametrize(
    "profile, engine, expected",
    [
        ("cpu", "Transformers", ("rljob-worker-cpu:dev", "rljob-worker-cpu:dev")),
        ("cpu", "VLLM", ("rljob-worker-cpu:dev", "rljob-worker-vllm-cpu:dev")),
        ("nvidia-h100", "VLLM", ("rljob-worker:dev", "rljob-worker-vllm:dev")),
    ],
)
def test_who_generates_with_vllm_has_the_image_that_holds_it(profile, engine, expected):
    groups = ", ".join(f"{{name: {name}, accelerator: {{profile: {profile}}}}}" for name in ("train", "rollout"))
    overrides = (f"workerGroups=[{groups}]", f"rollout.engine={engine}")
    context = make_context(*overrides)
    assert tuple(worker_image(context, group) for group in context.plan.groups) == expected
    named = make_context(*overrides, profiles={profile: {"image": "site:1"}})
    assert {worker_image(named, group) for group in named.plan.groups} == {"site:1"}


def test_a_device_for_which_we_have_no_image_needs_one():
    (problem,) = child_problems(make_context(one_group("cambricon")))
    assert "no worker image for mlu; set acceleratorProfiles.cambricon.image" in problem
    own = {"spec": {"containers": [{"name": "worker", "image": "mine:1"}]}}
    assert child_problems(make_context(one_group("cambricon", template=own))) == []
    assert child_problems(make_context(one_group("cambricon"), profiles={"cambricon": {"image": "mlu:1"}})) == []


def test_monitoring_and_network_are_made_when_asked_for():
    settings = {
        "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
        "monitoring": {"labels": {"release": "prom"}},
    }
    _, _, policy, monitor = static_children(make_context("monitoring.podMonitor=true", settings=settings))
    inside, outside = policy["spec"]["ingress"]
    assert "ports" not in inside and [item["port"] for item in outside["ports"]] == [9400, 9401]
    assert monitor["metadata"]["labels"]["release"] == "prom"
    relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert {"sourceLabels": ["__meta_kubernetes_pod_label_rljob_dev_job"], "targetLabel": "rljob"} in relabelings


def test_every_attempt_has_a_rank_table_of_its_own():
    context = make_context(one_group("ascend-910", 8))
    (table,) = rank_tables(context, 2)
    assert table["metadata"]["name"] == "rings-config-small-a2"
    assert table["data"] == {"hccl.json": '{"status":"initializing"}'}
    env = env_of(worker_of(pods(context, 2)[0]))
    assert env["RLJOB_RANK_TABLE"] == env["RANK_TABLE_FILE"] == "/user/serverid/devindex/config/hccl.json"
    assert rank_tables(make_context(), 1) == []


def test_a_rank_table_of_several_groups_is_waited_for_but_not_handed_to_the_collectives():
    accelerator = {"profile": "ascend-910", "count": 1}
    groups = f"[{{name: train, accelerator: {accelerator}}}, {{name: rollout, accelerator: {accelerator}}}]"
    env = env_of(worker_of(pods(make_context(f"workerGroups={groups}"), 1)[0]))
    assert "RLJOB_RANK_TABLE" in env and "RANK_TABLE_FILE" not in env


def test_a_thousand_pods_hash_their_plan_once(monkeypatch):
    context = make_context("data.batchSize=1024", one_group(replicas=1024))
    calls = []
    counting = SimpleNamespace(sha256=lambda data: calls.append(1) or hashlib.sha256(data))
    monkeypatch.setattr("rljob_operator.manifests.context.hashlib", counting)
    assert len(pods(context, 1)) == 1024
    assert len(calls) == 1
