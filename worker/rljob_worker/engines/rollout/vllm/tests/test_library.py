"""Where vLLM is not installed."""

import sys

import pytest

from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.errors import InvalidJob


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.endswith(("rollout.vllm.starting", "rollout.vllm.engine"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InvalidJob, match="no vllm.*make vllm.*engine: Transformers"):
        load_start()
