"""Where vLLM is not installed, or another one than is called."""

import os
import sys
from types import ModuleType

import pytest

from rljob_worker.engines.rollout.vllm.library import load_start, require_version
from rljob_worker.errors import InvalidJob

pytestmark = pytest.mark.usefixtures("own_environment")


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.endswith(("rollout.vllm.starting", "rollout.vllm.engine"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InvalidJob, match="no vllm.*make vllm.*engine: Transformers"):
        load_start()


def test_a_version_that_is_too_old_is_named_before_more_of_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("vllm")
    old.__version__ = "0.9.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", old)
    with pytest.raises(InvalidJob, match=r"has vLLM 0\.9\.2, and 0\.32 is the oldest.*engine: Transformers"):
        load_start()


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_what_kernels_ask_for_when_they_are_imported_is_there_by_then(
    monkeypatch: pytest.MonkeyPatch, batch_invariant: bool
) -> None:
    asked = []

    class Importing(ModuleType):
        @property
        def __version__(self) -> str:
            asked.append(os.environ.get("VLLM_BATCH_INVARIANT"))
            return "0.9.2"

    monkeypatch.setitem(sys.modules, "vllm", Importing("vllm"))
    with pytest.raises(InvalidJob):
        load_start(batch_invariant=batch_invariant)
    assert asked == ["1" if batch_invariant else None]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.1.dev4+g123", "1.0"])
def test_versions_that_will_do(version: str) -> None:
    require_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.4.2+cpu", "dev"])
def test_versions_that_are_too_old(version: str) -> None:
    with pytest.raises(InvalidJob, match="the oldest"):
        require_version(version)
