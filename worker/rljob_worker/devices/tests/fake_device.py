"""A device that queues copies to the host until its stream is waited for, as accelerators do."""

from __future__ import annotations

from types import SimpleNamespace

import torch

TYPE = "privateuseone"
"""What torch calls a type that no plugin has named; naming it would last as long as the process."""

FREE, TOTAL, RESERVED, ALLOCATED = 700, 1000, 50, 20


class FakeModule:
    """What `torch.get_device_module` gives for it; `queue` holds what is not done yet."""

    def __init__(self) -> None:
        self.queue = []
        self.current = None
        self.num_emptied = 0
        self.is_begun = True
        self.generators = [b"a", b"b", b"c"]

    def device_count(self):
        return 3

    def is_available(self):
        return True

    def is_initialized(self):
        return self.is_begun

    def get_rng_state(self, device):
        assert self.is_begun, "that would begin to use the device"
        return self.generators[device]

    def set_rng_state(self, state, device):
        self.generators[device] = state

    def set_device(self, device):
        self.current = device

    def mem_get_info(self, device):
        return FREE, TOTAL

    def memory_reserved(self, device):
        return RESERVED

    def memory_allocated(self, device):
        return ALLOCATED

    def empty_cache(self):
        self.num_emptied += 1

    def current_stream(self, device):
        return SimpleNamespace(synchronize=self._finish)

    def _finish(self):
        for target, source in self.queue:
            target.copy_(source)
        self.queue.clear()


class FakeTensor(torch.Tensor):
    """A tensor that says it is on the fake device; its values are in `held`, on the host."""

    @staticmethod
    def __new__(cls, held, module):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=torch.device(TYPE, 0))

    def __init__(self, held, module):
        self.held = held
        self.module = module

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return FakeTensor(arguments[0].held, arguments[0].module)
        if function is torch.ops.aten.copy_.default and isinstance(arguments[1], FakeTensor):
            target, source = arguments[:2]
            source.module.queue.append((target, source.held.clone()))
            return target
        if function is torch.ops.aten.is_pinned.default:
            return False
        raise NotImplementedError(f"the fake device does not know {function}")
