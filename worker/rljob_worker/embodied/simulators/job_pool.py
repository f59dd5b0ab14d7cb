"""What a job says of its simulators, as settings, limits and variables of their processes."""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable, Mapping, Sequence

from rljob_api.v1alpha1 import SimulatorSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.embodied.simulators.settings import FIELD, PoolLimits, SimulatorSettings
from rljob_worker.errors import NotHere
from rljob_worker.sandbox.guardian.environment import child_environment


def simulator_settings(simulator: SimulatorSpec) -> SimulatorSettings:
    """How the job's environments are made and played."""
    bounds = simulator.reward_bounds
    return SimulatorSettings(
        simulator.run,
        simulator.options,
        settle_steps=simulator.settle_steps,
        cameras=simulator.cameras,
        state=simulator.state if simulator.has_state else None,
        reward_bounds=None if bounds is None else (bounds.low, bounds.high),
        stops_at_success=simulator.after_success == "Stop",
    )


def pool_limits(simulator: SimulatorSpec, processes: int | None = None) -> PoolLimits:
    """How many of them there are. processes: in the place of the job's number."""
    return PoolLimits(
        processes=processes or simulator.processes,
        environments=simulator.environments_per_process,
        step_seconds=simulator.step_seconds,
        start_seconds=simulator.start_seconds,
        memory_bytes=None if simulator.memory is None else parse_quantity(simulator.memory),
    )


def simulator_environment(
    simulator: SimulatorSpec,
    pythonpath: Sequence[str],
    device: int,
    base: Mapping[str, str],
    find_library: Callable[[str], str | None] = ctypes.util.find_library,
) -> dict[str, str]:
    """Variables of the processes. device: number of the worker's accelerator on this host; 0 of a CPU. base: the
    worker's variables. Raises NotHere where pictures are to be drawn with EGL and there is none."""
    require_rendering(simulator, find_library)
    return child_environment(pythonpath) | drawing_variables(simulator, device, base)


def require_rendering(
    simulator: SimulatorSpec, find_library: Callable[[str], str | None] = ctypes.util.find_library
) -> None:
    """Raises NotHere where pictures are to be drawn with EGL and there is none."""
    if simulator.rendering == "EGL" and find_library("EGL") is None:
        raise NotHere(
            f"{FIELD}.rendering: EGL is not on this machine; install libegl1 and a driver for it (apt-get install "
            "libegl1 libegl-mesa0), or write Off, where pictures are drawn in another way"
        )


def drawing_variables(simulator: SimulatorSpec, device: int, base: Mapping[str, str]) -> dict[str, str]:
    """What says how pictures are drawn, and on which device. Arguments are those of `simulator_environment`."""
    if simulator.rendering == "Off":
        return {}
    visible = [item.strip() for item in base.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    chosen = visible[0] if len(visible) == 1 and visible[0].isdigit() else str(device)
    return {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl", "MUJOCO_EGL_DEVICE_ID": chosen, "EGL_DEVICE_ID": chosen}
