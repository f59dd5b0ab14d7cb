"""What the API server may say instead of yes.

ClusterError
├── AlreadyExists   create: the name is taken
├── Conflict        the object changed meanwhile, or is not the one that was meant
├── Forbidden       RBAC does not grant the operator this verb
├── QuotaExceeded   a ResourceQuota of the namespace is used up
├── Rejected        the server, or an admission plugin, does not accept this object
├── NotFound        the namespace, the object to change, or the whole kind is missing
├── Gone            a watch or a paged list began too long ago: list again
└── Unavailable     no useful answer after all retries
"""

from __future__ import annotations

from rljob_operator.cluster.kinds import Kind


class ClusterError(Exception):
    """A request that did not succeed; says which."""

    def __init__(self, verb: str, kind: Kind, namespace: str | None, message: str) -> None:
        super().__init__(verb, kind, namespace, message)
        self.verb = verb
        self.kind = kind
        self.namespace = namespace
        self.message = message
        """The server's words."""

    @property
    def what(self) -> str:
        """`create pods in namespace team-a`."""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.kind.resource}{place}"

    def __str__(self) -> str:
        return f"cannot {self.what}: {self.message}"


class AlreadyExists(ClusterError):
    """The name is taken.  After a lost connection it may be our own object, created by a request whose answer was
    lost."""


class Conflict(ClusterError):
    """The object changed meanwhile."""


class Forbidden(ClusterError):
    """RBAC does not grant the verb."""

    def __str__(self) -> str:
        return f"the operator may not {self.what}; grant its service account that verb: {self.message}"


class QuotaExceeded(ClusterError):
    """A ResourceQuota is used up."""


class Rejected(ClusterError):
    """The object is not acceptable, and will not be when sent again."""


class NotFound(ClusterError):
    """The namespace, the object or the kind is missing."""


class Gone(ClusterError):
    """The resourceVersion is too old."""


class Unavailable(ClusterError):
    """No useful answer after all retries."""
