"""Simulators that come with rljob: what other packages have, as environments of one form.

rollout:
  simulator:
    run: rljob_worker.embodied.adapters:metaworld
    options: {tasks: [reach-v3, push-v3]}
"""

from rljob_worker.embodied.adapters.gymnasium_environment import gymnasium, gymnasium_robotics
from rljob_worker.embodied.adapters.libero_environment import libero
from rljob_worker.embodied.adapters.maniskill_environment import maniskill
from rljob_worker.embodied.adapters.metaworld_environment import metaworld

__all__ = ["gymnasium", "gymnasium_robotics", "libero", "maniskill", "metaworld"]
