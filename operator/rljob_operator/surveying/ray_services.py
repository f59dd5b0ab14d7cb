"""`RayServices`: where what KubeRay serves for a job is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rljob_operator.cluster.kinds import Kind
from rljob_operator.vocabulary.key import Key


class RayServices(Protocol):
    """KubeRay's, as a watch tells of them."""

    @property
    def kind(self) -> Kind | None:
        """As the cluster has them; None where there is no KubeRay, or models are in pods of ours."""
        ...

    def of(self, key: Key) -> Sequence[dict[str, Any]] | None:
        """The job's; None while there is no watch, and the API server is asked."""
        ...
