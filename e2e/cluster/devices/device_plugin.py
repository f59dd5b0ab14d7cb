"""Accelerators that are not there: a kubelet device plugin, run for one node from the host.

`python -m e2e.cluster.devices.device_plugin FOLDER RESOURCE=COUNT ...`: FOLDER is the device-plugins folder of
the node's kubelet. A file `unhealthy` in it names devices, one a line, that the node is to count as broken.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc

from e2e.cluster.devices.device_plugin_api import api, services

API_VERSION = "v1beta1"
POLL_SECONDS = 0.5
MAX_SOCKET_PATH = 107
# what a vendor's plugin tells the container about the devices it got
VISIBLE_DEVICES = {
    "huawei.com/Ascend910": "ASCEND_VISIBLE_DEVICES",
    "huawei.com/npu": "ASCEND_VISIBLE_DEVICES",
    "nvidia.com/gpu": "NVIDIA_VISIBLE_DEVICES",
}


def device_number(device: str) -> int:
    return int(device.rpartition("-")[2])


def preferred(available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
    """Neighbours: the lowest numbers that are free, after those that are decided."""
    others = [device for device in sorted(available, key=device_number) if device not in must_include]
    return [*must_include, *others][:count]


def visible_devices(resource: str, devices: Sequence[str]) -> dict[str, str]:
    numbers = sorted(map(device_number, devices))
    return {VISIBLE_DEVICES.get(resource, "VISIBLE_DEVICES"): ",".join(map(str, numbers))}


class DevicePlugin(services.DevicePluginServicer):  # type: ignore[misc, name-defined]
    """Serves one resource; the methods in capitals are kubelet's interface."""

    def __init__(self, resource: str, count: int) -> None:
        self.resource = resource
        self.endpoint = resource.replace("/", "-") + ".sock"
        self.devices = [f"{resource.rpartition('/')[2]}-{number}" for number in range(count)]
        self.unhealthy: frozenset[str] = frozenset()
        self.changed = threading.Condition()
        self.options = api.DevicePluginOptions(get_preferred_allocation_available=True)

    def set_unhealthy(self, devices: frozenset[str]) -> None:
        with self.changed:
            self.unhealthy = devices & set(self.devices)
            self.changed.notify_all()

    def device_list(self, unhealthy: frozenset[str]) -> object:
        health = {device: "Unhealthy" if device in unhealthy else "Healthy" for device in self.devices}
        topology = api.TopologyInfo(nodes=[api.NUMANode(ID=0)])
        devices = [api.Device(ID=device, health=said, topology=topology) for device, said in health.items()]
        return api.ListAndWatchResponse(devices=devices)

    def GetDevicePluginOptions(self, request, context):  # type: ignore[no-untyped-def]
        return self.options

    def ListAndWatch(self, request, context) -> Iterator[object]:  # type: ignore[no-untyped-def]
        said: frozenset[str] | None = None
        while context.is_active():
            with self.changed:
                self.changed.wait_for(lambda: self.unhealthy != said, timeout=1)  # noqa: B023
                news = self.unhealthy
            if news != said:
                said = news
                yield self.device_list(news)

    def GetPreferredAllocation(self, request, context):  # type: ignore[no-untyped-def]
        answers = [
            api.ContainerPreferredAllocationResponse(
                deviceIDs=preferred(asked.available_deviceIDs, asked.must_include_deviceIDs, asked.allocation_size)
            )
            for asked in request.container_requests
        ]
        return api.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request, context):  # type: ignore[no-untyped-def]
        answers = [
            api.ContainerAllocateResponse(envs=visible_devices(self.resource, asked.devices_ids))
            for asked in request.container_requests
        ]
        return api.AllocateResponse(container_responses=answers)

    def PreStartContainer(self, request, context):  # type: ignore[no-untyped-def]
        return api.PreStartContainerResponse()


class Registration:
    """One plugin's server, registered with the kubelet that now listens in the folder."""

    def __init__(self, plugin: DevicePlugin, folder: Path) -> None:
        self.plugin = plugin
        self.folder = folder
        self.socket = folder / plugin.endpoint
        self._threads = ThreadPoolExecutor()
        self._server: grpc.Server | None = None
        if len(str(self.socket)) > MAX_SOCKET_PATH:
            raise ValueError(f"{self.socket} is longer than the {MAX_SOCKET_PATH} characters of a UNIX socket's path")

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(grace=None).wait()
        self._threads.shutdown()

    def renew(self) -> None:
        self.stop()
        self.socket.unlink(missing_ok=True)
        self._threads = ThreadPoolExecutor(4)
        self._server = server = grpc.server(self._threads)
        services.add_DevicePluginServicer_to_server(self.plugin, server)
        server.add_insecure_port(f"unix://{self.socket}")
        server.start()
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=self.plugin.endpoint,
            resource_name=self.plugin.resource,
            options=self.plugin.options,
        )
        with grpc.insecure_channel(f"unix://{self.folder / 'kubelet.sock'}") as channel:
            services.RegistrationStub(channel).Register(request, timeout=5)
        print(f"registered {self.plugin.resource} with {len(self.plugin.devices)} devices", flush=True)


def kubelet_life(folder: Path) -> tuple[int, int] | None:
    """Changes when a kubelet starts: it makes a new socket, and deletes those of all plugins."""
    with suppress(FileNotFoundError):
        stat = (folder / "kubelet.sock").stat()
        return stat.st_ino, stat.st_ctime_ns
    return None


def unhealthy_devices(folder: Path) -> frozenset[str]:
    with suppress(FileNotFoundError):
        return frozenset((folder / "unhealthy").read_text().split())
    return frozenset()


def serve(folder: Path, counts: Mapping[str, int]) -> None:
    registrations = [Registration(DevicePlugin(resource, count), folder) for resource, count in counts.items()]
    registered_with: tuple[int, int] | None = None
    while True:
        life = kubelet_life(folder)
        if life is not None and life != registered_with:
            try:
                for registration in registrations:
                    registration.renew()
                registered_with = life
            except grpc.RpcError as error:
                print(f"not registered yet: {error}", flush=True)
        for registration in registrations:
            registration.plugin.set_unhealthy(unhealthy_devices(folder))
        time.sleep(POLL_SECONDS)


def main(arguments: Sequence[str]) -> None:
    folder, *pairs = arguments
    counts = {resource: int(count) for resource, _, count in (pair.partition("=") for pair in pairs)}
    serve(Path(folder), counts)


if __name__ == "__main__":
    main(sys.argv[1:])
