"""What the API server may say instead of yes, and which error an answer is.

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

import json

from rljob_operator.cluster.kinds import ResourceKind
from rljob_operator.cluster.retry_policy import ApiResponse

_MAX_MESSAGE_CHARACTERS = 2000


class ApiError(Exception):
    """A request that did not succeed; says which."""

    def __init__(self, verb: str, kind: ResourceKind, namespace: str | None, message: str) -> None:
        super().__init__(verb, kind, namespace, message)
        self.verb = verb
        self.kind = kind
        self.namespace = namespace
        self.message = message
        """The server's message."""

    @property
    def what(self) -> str:
        """`create pods in namespace team-a`."""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.kind.resource}{place}"

    def __str__(self) -> str:
        return f"cannot {self.what}: {self.message}"


class AlreadyExists(ApiError):
    """The name is taken.  After a lost connection it may be our own object, created by a request whose answer was
    lost."""


class UpdateConflict(ApiError):
    """The object changed meanwhile."""


class Forbidden(ApiError):
    """RBAC does not grant the verb."""

    def __str__(self) -> str:
        return f"the operator may not {self.what}; grant its service account that verb: {self.message}"


class QuotaExceeded(ApiError):
    """A ResourceQuota is used up."""


class Rejected(ApiError):
    """The object is not acceptable, and will not be when sent again."""


class NotFound(ApiError):
    """The namespace, the object or the kind is missing."""


class Gone(ApiError):
    """The resourceVersion is too old."""


class Unavailable(ApiError):
    """No useful answer after all retries."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Rejected,
    404: NotFound,
    405: Rejected,
    409: UpdateConflict,
    410: Gone,
    413: Rejected,
    415: Rejected,
    422: Rejected,
}


def api_error_of(answer: ApiResponse, verb: str, kind: ResourceKind, namespace: str | None) -> ApiError:
    """The error of a request that finally failed."""
    reason, message = _status_of(answer)
    return _error_type(answer.status, reason, message)(verb, kind, namespace, message)


def _error_type(status: int | None, reason: str, message: str) -> type[ApiError]:
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists
    if status == 410 or reason == "Expired":
        return Gone
    if status == 403:
        return _type_of_refusal(message)
    return _BY_STATUS.get(status or 0, Unavailable)


def _type_of_refusal(message: str) -> type[ApiError]:
    # 403 comes from RBAC ("... cannot create resource ..."), from a ResourceQuota, and from every other admission
    # plugin: Pod Security, LimitRange, a namespace that is being deleted. Only the text tells them apart.
    if " cannot " in message and " resource " in message:
        return Forbidden
    return QuotaExceeded if "exceeded quota" in message else Rejected


def _status_of(answer: ApiResponse) -> tuple[str, str]:
    """Reason and message of the Status object that the API server answers; a proxy in between may answer anything."""
    text = answer.body.decode(errors="replace").strip()
    code = f"HTTP status {answer.status}"
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        words = text if answer.status is None else f"{code}: {text}"
        return "", words[:_MAX_MESSAGE_CHARACTERS]
    return str(status.get("reason") or ""), str(status.get("message") or code)[:_MAX_MESSAGE_CHARACTERS]
