"""The environment of a pod on this machine."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.vocabulary.process_environment import WORKER_DEFAULTS
from rljob_worker.databuffer.routes.hosts import Host, hosts_of
from rljob_worker.local.pods.environment import (
    RunContext,
    device_variables,
    missing_variables,
    pod_environment,
    thread_variables,
)
from rljob_worker.tests.documents import plan_of


def context(plan, **changes):
    fields = {
        "plan": plan, "plan_path": Path("/runs/tiny/plan.json"), "run_dir": Path("/runs/tiny"), "home": "",
        "scratch": Path("/tmp/x"), "token": Path("/runs/tiny/token"),
        "code_dir": Path("/project"), "attempt": 3, "resume": "auto", "mark": "abc", "lifeline": 9,
        "here": hosts_of(plan),
    }  # fmt: skip
    return RunContext(**fields | changes)


def test_a_pod_knows_who_it_is():
    plan = plan_of(groups=[("train", 2, 2)])
    environment = pod_environment({"HOME": "/home/me"}, context(plan), Host("train", 1), cores=8)
    assert environment == {
        "HOME": "/home/me",
        "RLJOB_PLAN": "/runs/tiny/plan.json", "RLJOB_GROUP": "train", "RLJOB_HOST_INDEX": "1", "RLJOB_ATTEMPT": "3",
        "RLJOB_PEERS": "/tmp/x/peers-3.json", "RLJOB_BUFFER": "/tmp/x/train-1-3.sock",
        "RLJOB_TOKEN_FILE": "/runs/tiny/token", "RLJOB_RUN_DIR": "/runs/tiny", "RLJOB_METRICS_PORT": "0",
        "RLJOB_REHEARSED": "1", "RLJOB_LISTEN": "127.0.0.1",
        "RLJOB_RESUME": "auto", "RLJOB_LOG_DIR": "/runs/tiny/logs/attempt-3",
        "RLJOB_TERMINATION_LOG": "/runs/tiny/logs/attempt-3/termination-train-1.json",
        "RLJOB_LIFELINE_FD": "9", "RLJOB_FAMILY": "abc",
        "RLJOB_CODE": "/project", "PYTHONUNBUFFERED": "1",
        # eight cores, four workers
        "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2",
        **WORKER_DEFAULTS,
    }  # fmt: skip


def test_a_pod_on_a_machine_of_its_own_has_its_cores_and_accelerators_and_its_address():
    groups = [{"name": "train", "replicas": 2, "accelerator": {"profile": "nvidia", "count": 2}}]
    plan = plan_of(workerGroups=groups)
    here = (Host("train", 1),)
    around = context(plan, here=here, address="10.0.0.7", interface="eth1")
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "RLJOB_TOKEN": "secret"}
    environment = pod_environment(torchrun, around, here[0], cores=8)
    assert environment["OMP_NUM_THREADS"] == "4" and environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["RLJOB_LISTEN"] == "10.0.0.7" and environment["GLOO_SOCKET_IFNAME"] == "eth1"
    assert not torchrun.keys() & environment.keys()


def test_the_interface_that_a_user_names_wins():
    plan = plan_of()
    around = context(plan, address="10.0.0.7", interface="eth1")
    environment = pod_environment({"GLOO_SOCKET_IFNAME": "ib0"}, around, Host("train", 0), cores=8)
    assert environment["GLOO_SOCKET_IFNAME"] == "ib0"


def test_rows_go_to_the_runs_own_disk_unless_the_job_names_another():
    def spill_of(**data_buffer):
        plan = plan_of(dataBuffer=data_buffer)
        return pod_environment({}, context(plan), Host("train", 0), cores=8).get("RLJOB_SPILL_DIR")

    assert spill_of(spill={"limit": "1Gi"}) == "/runs/tiny/spill"
    assert spill_of(spill={"limit": "1Gi", "directory": "/nvme"}) is spill_of() is None


def test_memory_is_shared_where_the_user_says():
    environment = pod_environment({"RLJOB_ARENA_DIR": "/big"}, context(plan_of()), Host("train", 0), cores=8)
    assert environment["RLJOB_ARENA_DIR"] == "/big"


def test_a_pod_of_a_job_with_tls_knows_where_its_certificate_is():
    plan = plan_of(groups=[("train", 2, 2)], dataBuffer={"tls": True})
    environment = pod_environment({}, context(plan), Host("train", 1), cores=8)
    assert environment["RLJOB_TLS_DIR"] == "/tmp/x/tls-3/train-1"


def test_what_the_user_says_of_memory_wins():
    plan = plan_of()
    environment = pod_environment({"MALLOC_TRIM_THRESHOLD_": "131072"}, context(plan), Host("train", 0), cores=8)
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "131072" and environment["OMP_WAIT_POLICY"] == "PASSIVE"


SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


def test_the_jobs_variables_are_the_users_and_never_ours():
    plan = plan_of(env=[{"name": "OMP_NUM_THREADS", "value": "7"}, SECRET])
    around = {"TOKEN": "secret", "RLJOB_GROUP": "x", "RLJOB_RUN_ID": "uid"}
    environment = pod_environment(around, context(plan), Host("train", 0), cores=8)
    assert environment["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in environment
    assert environment["RLJOB_GROUP"] == "train" and environment["TOKEN"] == "secret"
    assert "RLJOB_RUN_ID" not in environment  # of the pod that somebody runs `rljob run` in
    assert missing_variables({}, plan) == ["TOKEN"] and missing_variables({"TOKEN": ""}, plan) == []


@given(st.integers(1, 64), st.integers(1, 64))
def test_threads_never_exceed_cores_unless_there_are_more_workers(workers, cores):
    threads = int(thread_variables({}, workers, cores)["OMP_NUM_THREADS"])
    assert threads >= 1 and threads * workers <= max(cores, workers)


def test_a_users_own_threads_stay():
    assert thread_variables({"MKL_NUM_THREADS": "1"}, 1, 8) == {}


def test_a_pod_is_told_its_share_of_the_accelerators():
    groups = [{"name": "train", "replicas": 2, "accelerator": {"profile": "nvidia", "count": 2}}]
    plan = plan_of(workerGroups=groups)
    assert device_variables({}, plan, hosts_of(plan), Host("train", 1)) == {"CUDA_VISIBLE_DEVICES": "2,3"}


def test_cpu_pods_have_no_devices():
    plan = plan_of()
    assert device_variables({}, plan, hosts_of(plan), Host("train", 0)) == {}
