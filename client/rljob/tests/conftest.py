"""Fixtures of the client's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob.tests.fake_api import FakeApi, serving
from rljob_api.tests.builders import SMALL


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with serving(api, tmp_path) as path:
        yield path


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """The small job."""
    path = tmp_path / "job.yaml"
    path.write_text(SMALL)
    return path
