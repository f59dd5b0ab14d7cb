import pytest

from rljob_operator.manifests.beyond.devices import devices


def one(count, *, always=False, name="nvidia.com/gpu", kind="limits"):
    sidecar = {"restartPolicy": "Always"} if always else {}
    return {"name": "c", "resources": {kind: {name: count}}, **sidecar}


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([], [one(2), one("3")], 5),  # they run together
        ([one(4), one(7)], [one(2)], 7),  # one after the other, before the two
        ([one(1, always=True), one(7)], [one(2)], 8),  # a sidecar runs beside what starts after it
        ([one(7), one(1, always=True)], [one(2)], 7),  # max(7, 1 + 2)
        ([one(2, always=True), one(1), one(3, always=True)], [one(4)], 9),  # 2 + 3 + 4 > 2 + 1
        ([], [one(1, kind="requests")], 1),
        ([], [one("2e1"), one("1k")], 1020),
        ([], [one("-5"), one(2)], 2),
        ([], [one(1, name="cpu"), one(2, name="hugepages-2Mi"), one(3, name="pod.kubernetes.io/x")], 0),
    ],
)
def test_devices_are_counted_as_the_scheduler_does(init, main, expected):
    assert sum(devices({"initContainers": init, "containers": main}, (), ()).values()) == expected


def test_each_resource_counts_by_itself():
    spec = {"initContainers": [one(4, name="a.b/x")], "containers": [one(2, name="c.d/y")], "resources": {}}
    assert devices(spec, (), ()) == {"a.b/x": 4, "c.d/y": 2}


def test_a_pod_may_ask_as_a_whole():
    assert devices({"containers": [one(2)], "resources": one(3)["resources"]}, (), ()) == {"nvidia.com/gpu": 3}


def test_less_than_nothing_is_nothing():
    asked = {"limits": {"nvidia.com/gpu": "-5"}, "requests": {"nvidia.com/gpu": "-5"}}
    assert devices({"containers": [{"name": "c", "resources": asked}, one(2)]}, (), ()) == {"nvidia.com/gpu": 2}


def test_some_resources_are_no_accelerators():
    spec = {"containers": [one(8, name="rdma/hca"), one(1, name="a.b/c"), one(2, name="gpu")]}
    assert devices(spec, {"gpu"}, ("rdma/", "a.b/c")) == {"gpu": 2}
