"""Accelerators of this machine, detected from variables and from the driver's library."""

import pytest

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.tests.builders import make_plan
from rljob_worker.databuffer.routes.hosts import Host, hosts_of
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.documents import plan_of
from rljob_worker.visible_devices import (
    check_devices,
    check_devices_of_services,
    is_loadable,
    require_devices,
    service_variables,
    share_of,
    uncounted_groups,
    uncounted_services,
)


def gpu_plan(profile="nvidia-h100", **spec):
    gpus = {"profile": profile, "count": 2}
    groups = [{"name": "train", "replicas": 2, "accelerator": gpus}, {"name": "rollout", "accelerator": gpus}]
    return plan_of(workerGroups=groups, **spec)


def share(base, group, host):
    plan = gpu_plan()
    return share_of(plan, hosts_of(plan), Host(group, host), DEFAULT["nvidia-h100"], base)


def refusal(plan, base, libraries=("libcuda.so.1",), here=()):
    """What the check says; empty where it has nothing to say."""
    try:
        check_devices(plan, here or hosts_of(plan), base, libraries.__contains__)
    except InvalidJob as error:
        return str(error)
    return ""


def test_pods_share_out_the_accelerators():
    assert [share({}, "train", 0), share({}, "train", 1), share({}, "rollout", 0)] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
    ]
    visible = {"CUDA_VISIBLE_DEVICES": "7,6, 5,4,3,2"}
    assert [share(visible, "train", 1), share(visible, "rollout", 0)] == [["5", "4"], ["3", "2"]]


@pytest.mark.parametrize("nothing", ["", "-1", "-1,0,1"])
def test_a_user_can_make_no_accelerator_visible(nothing):
    assert share({"CUDA_VISIBLE_DEVICES": nothing}, "train", 0) == []


def test_what_is_enough_or_unknown_is_not_refused():
    six = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}
    assert refusal(gpu_plan(), {}) == refusal(gpu_plan(), six) == ""
    assert refusal(plan_of(), {"CUDA_VISIBLE_DEVICES": ""}, libraries=()) == ""  # a job for CPUs
    assert refusal(gpu_plan("amd"), {}, libraries=()) == ""


def test_where_only_workers_can_count_is_reported():
    driver = {"libcuda.so.1"}.__contains__
    assert [group.name for group in uncounted_groups(gpu_plan(), {}, driver)] == ["train", "rollout"]
    assert [group.name for group in uncounted_groups(gpu_plan("amd"), {}, set().__contains__)] == ["train", "rollout"]
    assert uncounted_groups(gpu_plan(), {}, set().__contains__) == []  # there are none, which is reported already
    assert uncounted_groups(gpu_plan(), {"CUDA_VISIBLE_DEVICES": "0,1"}, driver) == []
    assert uncounted_groups(plan_of(), {}, driver) == []


def test_a_pod_on_a_machine_of_its_own_needs_its_own_accelerators_alone():
    two, one = {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0"}
    assert refusal(gpu_plan(), two, here=[Host("rollout", 0)]) == ""
    assert refusal(gpu_plan(), one, here=[Host("rollout", 0)]).startswith("only 1 CUDA device")


def test_without_the_driver_there_is_no_device():
    assert refusal(gpu_plan(), {}, libraries=()) == (
        "no CUDA device for a pod of worker group train, which wants 2 (profile nvidia-h100); use profile cpu, or run "
        "where there are enough"
    )


@pytest.mark.parametrize(
    ("visible", "result"),
    # train takes 2 x 2, rollout what is left of 2
    [("0", "only 1 CUDA device for a pod of worker group train, which wants 2"),
     ("0,1,-1,3,4,5", "no CUDA device for a pod of worker group train, which wants 2"),
     ("0,1,2,3,4", "only 1 CUDA device for a pod of worker group rollout, which wants 2")],
)  # fmt: skip
def test_a_pod_whose_share_is_short_is_named_with_what_is_left_for_it(visible, result):
    assert refusal(gpu_plan(), {"CUDA_VISIBLE_DEVICES": visible}).startswith(result)


def test_what_the_job_itself_makes_visible_is_left_to_its_workers():
    plan = gpu_plan(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}])
    assert refusal(plan, {"CUDA_VISIBLE_DEVICES": ""}) == ""


def test_a_library_is_there_or_not():
    assert is_loadable("libc.so.6") and not is_loadable("libno-such-driver.so.1")


def model(name, profile="nvidia-h100", count=1, replicas=1):
    accelerator = {"profile": profile, "count": count}
    shipped = {"run": "rljob_worker.services:reward_model", "options": {"path": "m"}}
    return {"name": name, **shipped, "workerGroup": {"replicas": replicas, "accelerator": accelerator}}


def refusal_of_services(plan, base, libraries=("libcuda.so.1",)):
    try:
        check_devices_of_services(plan, hosts_of(plan), base, libraries.__contains__)
    except InvalidJob as error:
        return str(error)
    return ""


def test_services_have_the_accelerators_that_workers_leave():
    # workers take six
    plan = gpu_plan(services=[model("a", count=2), model("b", profile="nvidia", replicas=2), model("c", "cpu", 3)])
    assert service_variables(plan, hosts_of(plan), {}) == {"CUDA_VISIBLE_DEVICES": "6,7,8,9"}
    visible = {"CUDA_VISIBLE_DEVICES": "9,8,7,6,5,4,3,2,1,0"}
    assert service_variables(plan, hosts_of(plan), visible) == {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}
    assert service_variables(plan, [Host("rollout", 0)], {}) == {"CUDA_VISIBLE_DEVICES": "2,3,4,5"}


def test_services_on_cpus_get_no_accelerator():
    plan = gpu_plan(services=[model("a", "cpu", 3)])
    assert service_variables(plan, hosts_of(plan), {}) == {}
    assert refusal_of_services(plan, {"CUDA_VISIBLE_DEVICES": ""}, libraries=()) == ""


def test_what_a_vendor_wants_in_the_environment_comes_with_its_devices():
    plan = plan_of(services=[model("a", "huawei-npu", 2)])
    result = service_variables(plan, hosts_of(plan), {})
    assert (result["ASCEND_RT_VISIBLE_DEVICES"], result["HCCL_CONNECT_TIMEOUT"]) == ("0,1", "1200")


@pytest.mark.parametrize(
    ("visible", "libraries", "words"),
    [
        ("0,1,2,3,4,5,6", ["libcuda.so.1"],
         'service "b" wants 2 CUDA devices (profile nvidia-h100) besides the 7 that workers and other services take, '
         "and none of 7 are left; lower its workerGroup.replicas"),
        ("0,1,2,3,4,5,6,7", ["libcuda.so.1"], "and 1 of 8 are left"),
        ("0,1", ["libcuda.so.1"], 'service "a" wants 1 CUDA devices (profile nvidia-h100) besides the 6'),
        (None, [], "and none of 0 are left"),
    ],
)  # fmt: skip
def test_services_for_which_too_few_are_left_are_named(visible, libraries, words):
    plan = gpu_plan(services=[model("a"), model("b", replicas=2)])
    base = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert words in refusal_of_services(plan, base, libraries)


def test_services_for_which_there_are_enough_or_nobody_knows_are_not_refused():
    plan = gpu_plan(services=[model("a"), model("b", replicas=2)])
    nine = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7,8"}
    assert refusal_of_services(plan, nine) == refusal_of_services(plan, {}) == ""
    assert refusal_of_services(gpu_plan("amd", services=[model("a", "amd")]), {}, libraries=()) == ""


def test_where_only_copies_can_count_is_reported():
    plan = gpu_plan(services=[model("a"), model("b", "amd"), model("c", "cpu")])
    driver = {"libcuda.so.1"}.__contains__
    assert [uncounted_service.name for uncounted_service in uncounted_services(plan, {}, driver)] == ["a", "b"]
    assert [
        uncounted_service.name for uncounted_service in uncounted_services(plan, {"CUDA_VISIBLE_DEVICES": "0"}, driver)
    ] == ["b"]
    assert [uncounted_service.name for uncounted_service in uncounted_services(plan, {}, set().__contains__)] == [
        "b"
    ], "there are none"


def test_a_variable_for_workers_and_services_alike_is_refused():
    own = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    words = 'spec.env sets CUDA_VISIBLE_DEVICES for workers and for service "a" alike, which would share accelerators'
    assert refusal_of_services(gpu_plan(env=own, services=[model("a")]), {}).startswith(words)
    assert refusal_of_services(gpu_plan(env=own, services=[model("a", "cpu")]), {}) == ""


(FOUR_GPUS,) = make_plan(
    "workerGroups=[{name: train, replicas: 1, accelerator: {profile: nvidia, count: 4}}]",
).groups


def test_as_many_as_workers_are_enough():
    require_devices(FOUR_GPUS, 4)
    require_devices(FOUR_GPUS, 5)


@pytest.mark.parametrize(
    ("num_found", "said"),
    [(0, "no CUDA device for a pod of worker group train, which wants 4 (profile nvidia); use profile cpu, or run"),
     (1, "only 1 CUDA device for a pod of worker group train, which wants 4 (profile nvidia); lower accelerator.count "
         "to 1, or run"),
     (3, "only 3 CUDA devices for a pod")],
)  # fmt: skip
def test_fewer_are_refused_for_good_with_the_fix(num_found, said):
    with pytest.raises(InvalidJob) as refusal:
        require_devices(FOUR_GPUS, num_found)
    assert str(refusal.value).startswith(said) and refusal.value.exit_code == 64
