"""What of the process starting vLLM may not change.

It is started beside an engine that trains. It would seed every generator of the process with its own seed, put itself
in place of `torch.set_num_threads`, and set variables that every process started later inherits, LD_PRELOAD among them.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from rljob_worker.devices.modules import kept_generators

_OWN = "VLLM_"


@contextmanager
def preserved_process_state(given: Mapping[str, str]) -> Iterator[None]:
    """A block that may change the process, with `given` in its environment: random states, thread settings and
    variables that are not vLLM's are afterwards what they were."""
    variables, set_num_threads = dict(os.environ), torch.set_num_threads
    numpy_state, python_state = np.random.get_state(), random.getstate()
    os.environ.update(given)
    try:
        with kept_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_num_threads = set_num_threads
        _restore(variables)


def _restore(variables: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if not name.startswith(_OWN) and name not in variables]:
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if not name.startswith(_OWN)})
