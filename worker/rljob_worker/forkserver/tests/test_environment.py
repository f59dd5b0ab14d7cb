"""Which environments may share a fork server, and what forks import."""

from pathlib import Path

import pytest

from rljob_worker.forkserver.environment import are_forked, key, search_path, server_environment, shadowed

BASE = {"HOME": "/home/me", "OMP_NUM_THREADS": "2", "RLJOB_GROUP": "train", "PYTHONPATH": "/job"}


@pytest.mark.parametrize(
    "read_late",
    [
        {"RLJOB_LOCAL_RANK": "3"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"PYTHONPATH": "/other"},
        {"PWD": "/x"},
        {"GLOO_SOCKET_IFNAME": "eth0"},
    ],
)
def test_who_a_process_is_does_not_keep_it_from_a_server(read_late: dict[str, str]) -> None:
    assert key({**BASE, **read_late}) == key(BASE)


@pytest.mark.parametrize(
    "read_early", [{"OMP_NUM_THREADS": "1"}, {"MALLOC_TRIM_THRESHOLD_": "1"}, {"HF_HUB_OFFLINE": "1"}, {"HOME": ""}]
)
def test_what_libraries_read_when_they_are_imported_does(read_early: dict[str, str]) -> None:
    assert key({**BASE, **read_early}) != key(BASE)


def test_a_server_sees_no_folder_of_a_user(tmp_path: Path) -> None:
    ours, users = tmp_path / "ours", tmp_path / "users"
    (ours / "rljob_worker").mkdir(parents=True)
    users.mkdir()
    environment = server_environment({"PYTHONPATH": f"{users}:{ours}", "OPENBLAS_NUM_THREADS": "4", "A": "b"})
    assert environment["PYTHONPATH"] == str(ours)
    assert environment["A"] == "b"
    assert environment["OPENBLAS_NUM_THREADS"] == "4", "what somebody said wins"
    assert "PYTHONPATH" not in server_environment({"PYTHONPATH": str(users)})


def test_a_fork_finds_modules_where_a_fresh_process_would() -> None:
    current = ["/ours", "/lib/python3.11", "/lib/python3.11/site-packages"]
    path = search_path(current, server={"PYTHONPATH": "/ours"}, fork={"PYTHONPATH": "/job:/ours"})
    assert path == ["/job", "/ours", "/lib/python3.11", "/lib/python3.11/site-packages"]
    assert search_path(current, server={}, fork={}) == current


def test_devices_of_plugins_are_left_alone_unless_somebody_knows_better() -> None:
    assert are_forked("cpu", {}) and are_forked("cuda", {})
    assert not are_forked("npu", {}) and are_forked("npu", {"RLJOB_FORK_WORKERS": "on"})
    assert not are_forked("cuda", {"RLJOB_FORK_WORKERS": "off"})


def test_modules_that_a_user_has_in_place_of_imported_ones_are_named(tmp_path: Path) -> None:
    users, ours = tmp_path / "users", tmp_path / "ours"
    for package in (users / "numpy", users / "torch", ours / "rljob_worker"):
        package.mkdir(parents=True)
    (users / "torch" / "__init__.py").touch()
    (users / "json.py").touch()
    (users / "my_rewards.py").touch()
    (ours / "json.py").touch()
    loaded = ["json", "json.decoder", "numpy", "torch.nn"]
    # a folder numpy without __init__.py hides nothing; my_rewards is loaded nowhere
    assert shadowed({"PYTHONPATH": f"{users}:{ours}:{tmp_path / 'absent'}"}, loaded) == ["json", "torch"]
    assert shadowed({"PYTHONPATH": str(ours)}, loaded) == [] == shadowed({}, loaded)
