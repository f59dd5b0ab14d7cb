"""What the fork server of rank processes imports first: the modules that most of them use.

Imports make no garbage worth a collection; what they make lives as long as the server, and collections in forks would
copy every page of it. Later ones are as rare as those of `testing.garbage`.
"""

import contextlib
import gc
import importlib

MODULES = (
    "rljob_worker.engines.fsdp",
    "rljob_worker.engines.megatron.layers",
    "rljob_worker.engines.tests.builders",
    "rljob_worker.runtime.setup.world",
    "transformers.models.qwen3.modeling_qwen3",
)
"""Those that an environment lacks are left out."""

gc.disable()
for module in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
gc.freeze()
gc.set_threshold(50_000, 20, 20)
gc.enable()
