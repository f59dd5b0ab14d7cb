"""Starts Ray and Ray Serve with the services of a job."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.catalogue.services import PREFIX, RAY_GATE, RAY_GPU, RAY_TIMEOUTS
from rljob_api.planning.serving import ServicePlan
from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import InvalidJob, PeerLost
from rljob_worker.process.marked_processes import ENV_MARK, end_marked_processes
from rljob_worker.process.start_phases import phase
from rljob_worker.services.placement import ModelPlacement
from rljob_worker.services.ray_ports import RayPorts, free_ports, is_free
from rljob_worker.users_code.function import load_value

LOOPBACK = "127.0.0.1"

LOGGING = {"enable_access_log": False}
"""Logging of Ray Serve: a line for every request would fill the run's disk."""

NUM_STARTS = 5
"""Attempts to start Ray, before its own error is the end."""

OBJECT_STORE_BYTES = 100 << 20
"""Requests and answers are small; Ray's least is 75 MiB."""

_log = logging.getLogger(__name__)


def ray_environment(token: str, scratch: Path) -> dict[str, str]:
    """What Ray reads before it is imported: its use is not reported to anybody, strangers are refused, and its
    processes import what this one can."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_TMPDIR": str(scratch),  # else Ray notes in /tmp where this cluster is, for others to find
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else the loopback means this machine's address to others
        "RAY_raylet_start_wait_time_s": "300",  # else 10, which a machine that is very busy exceeds
        "RAY_prestart_worker_first_driver": "0",  # else an idle process for every core
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": RAY_GATE,
        **RAY_TIMEOUTS,
        # Ray starts processes of its own, which find the job's modules last, as all of ours do
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def start_serve(services: Sequence[ServicePlan], scratch: Path, address: str, port: int) -> int:
    """Ray on this machine alone, Ray Serve at `address`; the port that answers. port: 0 takes a free one. Raises
    PeerLost: the port is taken."""
    port = free_port(port, address)
    from ray import serve

    with phase("ray") as start_phase:
        ports = start_ray(
            lambda ports: _init_ray(ports, scratch / "ray", ray_resources(services, os.cpu_count() or 1)),
            lambda: end_marked_processes(os.environ[ENV_MARK], grace_seconds=0.0),
            lambda: free_ports(sum(service.copies for service in services)),
        )
        start_phase.found = f"ports {ports.first} to {ports.arguments['max_worker_port']}"
    serve.start(proxy_location="HeadOnly", http_options={"host": address, "port": port}, logging_config=LOGGING)
    return port


def start_ray(
    init: Callable[[RayPorts], object],
    end_children: Callable[[], object],
    choose: Callable[[], RayPorts],
    is_free: Callable[[int], bool] = is_free,
) -> RayPorts:
    """The ports at which it answers. Raises PeerLost: what was wrong in the end, a port that somebody has taken by its
    name."""
    for number in range(1, NUM_STARTS + 1):
        ports = choose()
        try:
            init(ports)
            return ports
        except Exception as error:  # Ray raises no other
            end_children()
            why = "; ".join(ports.taken(is_free)) or str(error)
            if number == NUM_STARTS:
                raise PeerLost(f"Ray did not start in {NUM_STARTS} attempts: {why}") from error
            _log.warning("Ray did not start (%s); trying again at other ports", why)
    raise AssertionError("at least one start")


def _init_ray(ports: RayPorts, scratch: Path, resources: Mapping[str, Any]) -> None:
    """A head on this machine's own address, and this process as its driver; `ray.init` alone takes no ports."""
    import ray
    from ray.cluster_utils import Cluster

    tell_raylet(scratch, ports.arguments["dashboard_agent_listen_port"])
    head = Cluster(
        initialize_head=True,
        head_node_args={
            **ports.arguments,
            **resources,
            "include_dashboard": False,
            "no_monitor": True,  # of an autoscaler, which a cluster of one node has no use for
            "node_ip_address": LOOPBACK,
            "object_store_memory": OBJECT_STORE_BYTES,
            "temp_dir": str(scratch),
        },
    )
    ray.init(head.address, log_to_driver=True, logging_level=logging.WARNING, _node_ip_address=LOOPBACK)


def tell_raylet(folder: Path, agent_port: int) -> None:
    """Ray's raylet ends unless the agents whose ports it does not know have reported theirs within 15 s, and the
    command that Ray's Python starts it with leaves one of them out."""
    from ray._private import services

    raylet = Path(services.RAY_PATH) / "core" / "src" / "ray" / "raylet" / "raylet"
    script = folder / "raylet"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(raylet))} "$@" --dashboard_agent_listen_port={agent_port}\n')
    script.chmod(0o700)
    services.RAYLET_EXECUTABLE = str(script)


def deploy(applications: Mapping[str, Any]) -> None:
    """Every application at `/NAME`; they get healthy later."""
    from ray import serve

    targets = [
        serve.RunTarget(item, name=name, route_prefix=f"/{name}", logging_config=LOGGING)
        for name, item in applications.items()
    ]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def application_of(service: ServiceSpec, plan: ServicePlan) -> Any:
    """The application, which a function makes of the options. Raises InvalidJob."""
    from ray.serve import Application

    owner = f'service "{service.name}"'
    value = load_value(owner, service.run)
    if callable(value):
        ours = {"place": placement_of(plan), **copies_of(service, plan)} if service.run.startswith(PREFIX) else {}
        try:
            value = value(dict(service.options), **ours)
        except Exception as error:  # user code: the job's owner must read anything it raises
            raise InvalidJob(f"{owner}: {service.run} raised {type(error).__name__}: {error}") from error
    elif service.options:
        raise InvalidJob(f"{owner}: {service.run} is not a function, and so takes no options; leave them out")
    if not isinstance(value, Application):
        raise InvalidJob(
            f"{owner}: {service.run} is a {type(value).__name__}, not an application of Ray Serve: that is what "
            "`YourDeployment.bind()` returns"
        )
    return value


def placement_of(plan: ServicePlan) -> ModelPlacement:
    """Where a copy of a shipped model lies."""
    return ModelPlacement(plan.device, plan.accelerators, plan.profile)


def copies_of(service: ServiceSpec, plan: ServicePlan) -> dict[str, Any]:
    """How many copies of a shipped model, and what Ray gives to each, in Ray Serve's words."""
    given = {}
    if plan.ray_resource is not None:
        given = {"ray_actor_options": in_rays_words({plan.ray_resource: plan.accelerators})}
    bounds = service.autoscaling
    if bounds is None:
        return {**given, "num_replicas": service.worker_group.replicas}
    return {
        **given,
        "autoscaling_config": {
            "min_replicas": bounds.min_replicas,
            "initial_replicas": bounds.initial_replicas,
            "max_replicas": bounds.max_replicas,
            "target_ongoing_requests": bounds.target_ongoing_requests,
            "upscale_delay_s": bounds.upscale_delay_seconds,
            "downscale_delay_s": bounds.downscale_delay_seconds,
        },
    }


def ray_resources(services: Sequence[ServicePlan], cores: int) -> dict[str, Any]:
    """What Ray shares out to copies, in its words. A CPU for each, so that they take turns on the cores rather than
    wait for ever; of accelerators those that copies ask for, and none where they ask for none."""
    accelerators: Counter[str] = Counter()
    for service in services:
        if service.ray_resource is not None:
            accelerators[service.ray_resource] += service.num_accelerators
    num_cpus = max(cores, sum(service.copies for service in services))
    return {"num_cpus": num_cpus, "num_gpus": 0, **in_rays_words(accelerators)}


def in_rays_words(accelerators: Mapping[str, int]) -> dict[str, Any]:
    """By Ray's names."""
    others = {name: count for name, count in accelerators.items() if name != RAY_GPU}
    gpus = {"num_gpus": accelerators[RAY_GPU]} if RAY_GPU in accelerators else {}
    return {**gpus, **({"resources": others} if others else {})}


def free_port(port: int, address: str = LOOPBACK) -> int:
    """`port`, or any where it is 0. Raises PeerLost where somebody has it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            raise PeerLost(f"port {port}, at which the services answered, is taken: {error.strerror}") from error
        return int(listener.getsockname()[1])
