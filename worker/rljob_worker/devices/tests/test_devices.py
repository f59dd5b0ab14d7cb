"""What every device does for us, on one that is neither a CPU nor CUDA."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rljob_worker
from rljob_worker.devices.copies import copies_on_host, empty_on_host, wait_for_copies
from rljob_worker.devices.memory import free_memory, free_of_driver, give_back, total_memory
from rljob_worker.devices.modules import kept_generators, num_devices, use
from rljob_worker.devices.tests.fake_device import FREE, TYPE, FakeModule, FakeTensor
from rljob_worker.engines.fsdp.checkpoint.shard_index import OwnShards


@pytest.fixture
def module(monkeypatch):
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return module


def test_its_devices_are_counted_and_one_is_used(module):
    assert num_devices(TYPE) == 3
    assert use(TYPE, 2) == torch.device(TYPE, 2) == module.current
    assert use("cpu", 2) == torch.device("cpu")


@pytest.mark.parametrize("is_begun", [True, False])
def test_whoever_seeds_its_generators_in_a_block_does_so_for_the_block_alone(module, monkeypatch, is_begun):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(TYPE))
    module.is_begun, before = is_begun, list(module.generators)
    with pytest.raises(ZeroDivisionError), kept_generators():
        module.generators[:] = [b"seeded"] * 3
        raise ZeroDivisionError
    assert module.generators == (before if is_begun else [b"seeded"] * 3)


def test_its_free_memory_is_not_the_hosts(module):
    device = torch.device(TYPE, 0)
    # 700 that nobody has, and 50 - 20 that torch keeps for later
    assert free_memory(device, workers_per_host=8) == 730
    assert total_memory(device) == 1000


def test_what_is_freed_goes_back_to_it(module):
    give_back(torch.device(TYPE, 0))
    assert module.num_emptied == 1


def test_the_driver_is_asked_once_torch_keeps_nothing(module):
    assert free_of_driver(torch.device(TYPE)) == FREE and module.num_emptied == 1


def test_copies_to_the_host_are_complete(module):
    numbers, zero = torch.arange(3.0), torch.zeros(1, dtype=torch.int64)
    tensors = [FakeTensor(numbers, module), torch.ones(2), FakeTensor(zero, module)]
    copies = copies_on_host(tensors)
    assert [copy.tolist() for copy in copies] == [[0, 1, 2], [1, 1], [0]]
    assert [copy.dtype for copy in copies] == [torch.float32, torch.float32, torch.int64]
    tensors[1].fill_(5)
    assert copies[1].tolist() == [1, 1]


def test_a_queued_copy_is_there_once_it_was_waited_for(module):
    tensor = FakeTensor(torch.arange(3.0), module)
    copy = empty_on_host(tensor).fill_(-1)
    copy.copy_(tensor, non_blocking=True)
    assert copy.tolist() == [-1, -1, -1]
    wait_for_copies([tensor.device, torch.device("cpu")])
    assert copy.tolist() == [0, 1, 2]


def test_a_checkpoint_holds_what_was_on_the_device(module):
    shards = OwnShards()
    shards.copy({"weight": FakeTensor(torch.arange(3.0), module)})
    (item,) = shards.plan.items
    assert shards.resolve_data(item).tolist() == [0, 1, 2]


def test_no_other_room_names_a_device_type():
    """Kernels and CUDA's graphs aside, which are made for one, and Megatron's configuration on CPUs."""
    folder = Path(rljob_worker.__file__).parent
    named = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if not {"tests", "conftest.py"} & set(path.parts)
        and re.search(r"""["']cuda["']|torch\.(cuda|accelerator)\.""", path.read_text())
    }
    assert named <= {
        "devices/__init__.py",
        "devices/modules.py",
        "engines/attention/flash.py",
        "engines/attention/varlen.py",
        "engines/log_probs/fused.py",
        "engines/megatron/cpu.py",
        "engines/rms_norm.py",
        "engines/rollout/transformers/static_steps.py",
    }


def test_copies_on_the_host_are_as_large_as_they_need_to_be_unless_a_user_wants_otherwise():
    code = (
        "import torch; from rljob_worker.devices.modules import pin_what_is_asked_for\n"
        "for before in ('', 'expandable_segments:True', 'pinned_max_round_threshold_mb:64'):\n"
        "    torch._C._accelerator_setAllocatorSettings(before)\n"
        "    pin_what_is_asked_for()\n"
        "    print(torch._C._accelerator_getAllocatorSettings())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = "pinned_max_round_threshold_mb:1"
    assert done.stdout.split() == [ours, f"expandable_segments:True,{ours}", "pinned_max_round_threshold_mb:64"]
