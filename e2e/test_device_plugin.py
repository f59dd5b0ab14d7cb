"""Devices that are not there, as kubelet sees them: a real gRPC server, and a kubelet that only listens."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from e2e.cluster.devices.device_plugin import DevicePlugin, Registration, preferred, visible_devices
from e2e.cluster.devices.device_plugin_api import api, services


class Kubelet(services.RegistrationServicer):  # type: ignore[misc, name-defined]
    """Remembers who registered."""

    def __init__(self, folder: Path) -> None:
        self.registered: list[str] = []
        self.threads = ThreadPoolExecutor(1)
        self.server = grpc.server(self.threads)
        services.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix://{folder / 'kubelet.sock'}")
        self.server.start()

    def Register(self, request, context):  # type: ignore[no-untyped-def]
        self.registered.append(request.resource_name)
        return api.Empty()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    yield kubelet
    kubelet.server.stop(grace=None).wait()
    kubelet.threads.shutdown()


@pytest.fixture
def registration(tmp_path: Path, kubelet: Kubelet) -> Iterator[Registration]:
    registration = Registration(DevicePlugin("huawei.com/Ascend910", 4), tmp_path)
    registration.renew()
    yield registration
    registration.stop()


def test_a_plugin_registers_and_registers_again(kubelet: Kubelet, registration: Registration) -> None:
    registration.renew()
    assert kubelet.registered == ["huawei.com/Ascend910"] * 2


def test_kubelet_sees_every_device_and_a_broken_one(registration: Registration) -> None:
    with grpc.insecure_channel(f"unix://{registration.socket}") as channel:
        stream = services.DevicePluginStub(channel).ListAndWatch(api.Empty())
        first = next(stream)
        assert [(device.ID, device.health) for device in first.devices] == [
            (f"Ascend910-{n}", "Healthy") for n in range(4)
        ]
        threading.Thread(target=registration.plugin.set_unhealthy, args=(frozenset({"Ascend910-2"}),)).start()
        assert [device.health for device in next(stream).devices] == ["Healthy", "Healthy", "Unhealthy", "Healthy"]
        stream.cancel()


def test_a_container_gets_its_devices(registration: Registration) -> None:
    asked = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=["Ascend910-3", "Ascend910-1"])]
    )
    with grpc.insecure_channel(f"unix://{registration.socket}") as channel:
        answer = services.DevicePluginStub(channel).Allocate(asked)
    assert dict(answer.container_responses[0].envs) == {"ASCEND_VISIBLE_DEVICES": "1,3"}


def test_neighbours_are_preferred_after_what_is_decided() -> None:
    available = ["gpu-10", "gpu-9", "gpu-2", "gpu-1"]
    assert preferred(available, ["gpu-9"], 3) == ["gpu-9", "gpu-1", "gpu-2"]


def test_a_resource_of_no_known_vendor_has_a_plain_variable() -> None:
    assert visible_devices("example.com/chip", ["chip-0"]) == {"VISIBLE_DEVICES": "0"}


def test_a_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="107 characters"):
        Registration(DevicePlugin("nvidia.com/gpu", 1), tmp_path / ("deep" * 30))
