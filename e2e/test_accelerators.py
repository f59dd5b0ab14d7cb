"""Pods ask for the profile's resource, and land where a device plugin offers it."""

from e2e.jobs import NamespaceJobs, small_spec


def test_npu_job_runs_where_the_plugin_offers_devices(jobs: NamespaceJobs) -> None:
    """The profile is Ascend's resource on a CPU worker; only node2 has the devices, and the plugin names the chosen."""
    group = {"name": "train", "accelerator": {"profile": "ascend-test", "count": 2}}
    # steps of 0.1 s: it runs for longer than between two looks at its phase
    job = jobs.apply("npu", small_spec(workerGroups=[group], stop={"steps": 60}, lifecycle={"cleanPodPolicy": "None"}))
    job.until("a pod with a node", lambda: job.pods() and job.pods()[0].node)
    pod = job.pods()[0]
    assert pod.node == "node2"
    worker = next(item for item in pod.body["spec"]["containers"] if item["name"] == "worker")
    assert worker["resources"]["limits"]["huawei.com/Ascend910"] == "2"
    job.until_phase("Running")
    seen = jobs.kubectl("exec", pod.name, "-c", "worker", "--", "printenv", "ASCEND_VISIBLE_DEVICES")
    assert len(seen.strip().split(",")) == 2
    job.until_succeeded()


def test_job_larger_than_the_pool_waits_and_says_for_what(jobs: NamespaceJobs) -> None:
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "ascend-test", "count": 8}}
    data = small_spec()["data"] | {"batchSize": 16}
    job = jobs.apply("too-large", small_spec(workerGroups=[group], data=data))
    job.until("a reason", lambda: "huawei.com/Ascend910" in job.condition("Scheduled").get("message", ""))
    assert job.condition("Scheduled")["status"] == "False"
