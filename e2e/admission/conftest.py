"""Fixtures of the admission tests: an API server of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.admission.api_server import AdmissionApiServer, api_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdmissionApiServer]:
    """One for all tests here, each with namespaces of its own."""
    with api_server(tmp_path_factory.mktemp("api-server")) as running:
        yield running
