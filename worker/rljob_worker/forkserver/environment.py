"""What a fork server's environment is, which environments it fits, and what a fork's path becomes. Pure."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rljob_worker.devices import FORKED_DEVICES
from rljob_worker.our_packages import OUR_PACKAGES

SWITCH = "RLJOB_FORK_WORKERS"
"""`off`: every worker imports for itself; `on`: workers are forked on any device."""
ROOT = "RLJOB_FORK_ROOT"
"""The socket of a root fork server."""

FORKABLE: Mapping[str, str] = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Without these numpy and pyarrow start threads when they are imported, and a fork takes none of them along; and a
library that asks torch whether there is CUDA would spoil it for every fork."""

_OF_A_SHELL = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


def are_forked(device: str, environment: Mapping[str, str]) -> bool:
    """Whether workers with this torch device and environment are forks."""
    switch = environment.get(SWITCH)
    return switch == "on" or (switch != "off" and device in FORKED_DEVICES)


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of the server whose forks will have `environment`: single-threaded libraries, no user's paths."""
    ours = [entry for entry in path_entries(environment) if holds_ours(entry)]
    path = {"PYTHONPATH": os.pathsep.join(ours)} if ours else {}
    rest = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**FORKABLE, **rest, **path}


def holds_ours(entry: str) -> bool:
    """Whether a folder of a path is a source tree of this project."""
    return any((Path(entry) / package).is_dir() for package in OUR_PACKAGES)


def shadowed(environment: Mapping[str, str], loaded: Iterable[str]) -> list[str]:
    """Top-level modules among `loaded` that a fresh process with `environment` would find in its PYTHONPATH instead."""
    names = {name.partition(".")[0] for name in loaded}
    folders = [Path(entry) for entry in path_entries(environment) if not holds_ours(entry)]
    return sorted({name for folder in folders for name in modules_in(folder)} & names)


def modules_in(folder: Path) -> Iterator[str]:
    """What `import` finds in a folder: modules and packages. A folder without `__init__.py` hides no other package."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.suffix in (".py", ".so"):
            yield entry.name.partition(".")[0]
        elif (entry / "__init__.py").exists():
            yield entry.name


def key(environment: Mapping[str, str]) -> str:
    """Two environments with the same key can share a server.

    Any variable may be read when a program starts or a library is imported (`MALLOC_*`, `OMP_*`, `HF_*`); a fork takes
    a new value of these too late. Ours, the devices, the path and the interface of process groups are read after the
    fork.
    """
    of_a_pod = _of_a_pod()
    read_early = {
        name: value
        for name, value in environment.items()
        if not name.startswith("RLJOB_") and name not in _OF_A_SHELL and name not in of_a_pod
    }
    return hashlib.sha256(json.dumps(read_early, sort_keys=True).encode()).hexdigest()


@cache
def _of_a_pod() -> frozenset[str | None]:
    # fork servers and reward processes, which ask for no key, start in half the time without pydantic
    from rljob_api.catalogue.profiles import DEFAULT

    return frozenset({"PYTHONPATH", "GLOO_SOCKET_IFNAME", *(item.visible_devices_env for item in DEFAULT.values())})


def search_path(current: Sequence[str], server: Mapping[str, str], fork: Mapping[str, str]) -> list[str]:
    """`sys.path` as a fresh process with the environment `fork` would have it, made of the server's `current` one."""
    of_server = set(path_entries(server))
    rest = [entry for entry in current if entry not in of_server]
    return list(dict.fromkeys([*path_entries(fork), *rest]))


def path_entries(environment: Mapping[str, str]) -> list[str]:
    """The absolute folders of PYTHONPATH."""
    return [os.path.abspath(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
