"""What rljob asks of a device: the only room that knows torch's device modules.

A device type is data (`rljob_api.catalogue.profiles`). Any device that torch has under `torch.get_device_module(type)`
serves: `device_count`, `set_device`, `mem_get_info`, `memory_reserved`, `memory_allocated`, `empty_cache`,
`current_stream`, `is_initialized`, `get_rng_state`, `set_rng_state`.
"""

FORKED_DEVICES = frozenset({"cpu", "cuda"})
"""Types whose workers are forks: torch itself touches these devices at first use. A plugin for another is imported with
torch, and may touch a device then."""
