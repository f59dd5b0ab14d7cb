"""A preload that costs nothing; numpy, because its generator is shared by forks."""

import numpy  # noqa: F401
