"""A cluster whose nodes have the image with vLLM from the beginning."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import KubeCluster
from e2e.cluster.cluster import backend
from e2e.cluster.images.image_recipes import WITH_VLLM


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubeCluster]:
    """Nodes that are cloned with an image share its 7 GB, packed and unpacked; one that gets it later has its own."""
    backend().build(WITH_VLLM)
    running = KubeCluster.up(index=int(os.environ.get("RLJOB_E2E_CLUSTER", "0")))
    yield running
    running.down()
