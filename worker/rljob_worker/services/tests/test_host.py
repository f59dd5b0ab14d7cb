"""What is decided before and while Ray Serve starts; Ray itself is in test_serving."""

import os
import socket
import sys
from pathlib import Path

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.catalogue.services import RAY_TIMEOUTS
from rljob_api.planning.serving import service_plan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import PeerLost
from rljob_worker.services.host import (
    NUM_STARTS,
    copies_of,
    free_port,
    ray_environment,
    ray_resources,
    start_ray,
)
from rljob_worker.services.ray_ports import RayPorts


def service(name="judge", **fields):
    return ServiceSpec.model_validate({"name": name, "run": "my:app", **fields})


def planned(service):
    return service_plan(service, DEFAULT)


def on(profile, count, replicas=1):
    return {"replicas": replicas, "accelerator": {"profile": profile, "count": count}}


def test_copies_are_said_in_ray_serves_words():
    three, scaled = (
        service(workerGroup={"replicas": 3}),
        service(autoscaling={"maxReplicas": 4, "upscaleDelaySeconds": 1}),
    )
    assert copies_of(three, planned(three)) == {"num_replicas": 3}
    assert copies_of(scaled, planned(scaled)) == {
        "autoscaling_config": {
            "min_replicas": 1,
            "initial_replicas": None,
            "max_replicas": 4,
            "target_ongoing_requests": 2.0,
            "upscale_delay_s": 1.0,
            "downscale_delay_s": 600.0,
        }
    }


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        ("nvidia-h100", {"num_gpus": 2}),
        ("amd", {"num_gpus": 2}),
        ("huawei-npu", {"resources": {"NPU": 2}}),
        ("gaudi", {"resources": {"HPU": 2}}),
    ],
)
def test_ray_gives_each_copy_its_accelerators(profile, options):
    fixed, scaled = (
        service(workerGroup=on(profile, 2)),
        service(workerGroup=on(profile, 2), autoscaling={"maxReplicas": 4}),
    )
    assert copies_of(fixed, planned(fixed)) == {"num_replicas": 1, "ray_actor_options": options}
    assert copies_of(scaled, planned(scaled))["ray_actor_options"] == options


def test_there_is_a_place_for_every_copy_however_few_cores_there_are():
    many = [service("a", workerGroup={"replicas": 3}), service("b", autoscaling={"maxReplicas": 4})]
    plans = [planned(item) for item in many]
    # what Ray would find by itself belongs to workers
    assert ray_resources(plans, cores=2) == {"num_cpus": 7, "num_gpus": 0}
    assert ray_resources(plans, cores=16) == {"num_cpus": 16, "num_gpus": 0}


def test_ray_has_the_accelerators_of_all_copies():
    many = [
        service("a", workerGroup=on("nvidia", 2, replicas=3)),
        service("b", workerGroup=on("nvidia-h100", 1), autoscaling={"maxReplicas": 4}),
        service("c", workerGroup=on("cpu", 5)),
    ]
    plans = [planned(item) for item in many]
    # 3 copies of 2 and at most 4 of 1
    assert ray_resources(plans, cores=2) == {"num_cpus": 8, "num_gpus": 10}
    others = [planned(service("d", workerGroup=on("gaudi", 2))), planned(service("e", workerGroup=on("gaudi", 4)))]
    assert ray_resources(others, cores=2) == {"num_cpus": 2, "num_gpus": 0, "resources": {"HPU": 6}}


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PeerLost, match=f"port {port}, at which the services answered, is taken"):
            free_port(port)
    assert free_port(0) > 0


class Starting:
    """Ray that fails this many times."""

    def __init__(self, num_failures):
        self.num_failures, self.happened = num_failures, []

    def init(self, ports):
        self.happened.append(ports.first)
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("timed out during startup")

    def start(self, firsts, is_free=lambda port: True):
        first = iter(firsts)
        return start_ray(self.init, lambda: self.happened.append("end"), lambda: RayPorts(next(first), 4), is_free)


def test_ray_that_does_not_start_is_tried_again_at_other_ports_within_bounds():
    ray = Starting(num_failures=1)
    assert ray.start([100, 200]) == RayPorts(200, 4)
    assert ray.happened == [100, "end", 200]
    ray = Starting(num_failures=99)
    with pytest.raises(PeerLost, match=f"Ray did not start in {NUM_STARTS} attempts: timed out during startup"):
        ray.start(range(100, 200, 10))
    assert ray.happened.count("end") == NUM_STARTS


def test_a_port_of_rays_that_somebody_took_is_named(caplog):
    ray = Starting(num_failures=1)
    # the fourth of seven from 100 on is that of metrics
    assert ray.start([100, 200], lambda port: port != 103).first == 200
    assert "port 103 of Ray's metrics is taken" in caplog.text
    both = "port 100 of Ray's store of the cluster's state is taken; port 101 of Ray's node manager is taken"
    with pytest.raises(PeerLost, match=both):
        Starting(num_failures=99).start([100] * NUM_STARTS, lambda port: port > 101)


def test_ray_is_told_to_keep_to_itself():
    result = ray_environment("s3cret", Path("/tmp/mine"))
    assert result["RAY_TMPDIR"] == "/tmp/mine"
    assert result["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"  # on Linux, too, it keeps to the loopback then
    assert result["RAY_USAGE_STATS_ENABLED"] == "0"
    assert RAY_TIMEOUTS.items() <= result.items()
    assert (result["RAY_AUTH_MODE"], result["RAY_AUTH_TOKEN"]) == ("token", "s3cret")


def test_rays_processes_find_the_jobs_modules_last(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/lib/python", "/project"])
    assert ray_environment("s3cret", Path("/tmp"))["PYTHONPATH"] == os.pathsep.join(["/lib/python", "/project"])
