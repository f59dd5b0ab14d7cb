"""From an answer that is no success to the error that says what it means."""

from __future__ import annotations

import json

from rljob_operator.cluster import errors
from rljob_operator.cluster.kinds import Kind
from rljob_operator.cluster.retry import Answer

_MAX_MESSAGE_CHARACTERS = 2000

_BY_STATUS: dict[int, type[errors.ClusterError]] = {
    400: errors.Rejected,
    404: errors.NotFound,
    405: errors.Rejected,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.Rejected,
    415: errors.Rejected,
    422: errors.Rejected,
}


def error_of(answer: Answer, verb: str, kind: Kind, namespace: str | None) -> errors.ClusterError:
    """The error of a request that finally failed."""
    reason, message = _status_of(answer)
    return _error_type(answer.status, reason, message)(verb, kind, namespace, message)


def _error_type(status: int | None, reason: str, message: str) -> type[errors.ClusterError]:
    if status == 409 and reason == "AlreadyExists":
        return errors.AlreadyExists
    if status == 410 or reason == "Expired":
        return errors.Gone
    if status == 403:
        return _type_of_refusal(message)
    return _BY_STATUS.get(status or 0, errors.Unavailable)


def _type_of_refusal(message: str) -> type[errors.ClusterError]:
    # 403 comes from RBAC ("... cannot create resource ..."), from a ResourceQuota, and from every other admission
    # plugin: Pod Security, LimitRange, a namespace that is being deleted. Only the text tells them apart.
    if " cannot " in message and " resource " in message:
        return errors.Forbidden
    return errors.QuotaExceeded if "exceeded quota" in message else errors.Rejected


def _status_of(answer: Answer) -> tuple[str, str]:
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
