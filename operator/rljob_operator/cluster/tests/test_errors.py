"""From the API server's messages to typed errors; the messages are those of Kubernetes 1.34."""

import json

import pytest

from rljob_operator.cluster import errors
from rljob_operator.cluster.errors import api_error_of
from rljob_operator.cluster.kinds import POD, RLJOB
from rljob_operator.cluster.retry_policy import ApiResponse


def refused(code: int, reason: str, message: str) -> ApiResponse:
    return ApiResponse(
        code, json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}).encode()
    )


RBAC = (
    'pods is forbidden: User "system:serviceaccount:rljob-system:rljob" cannot create resource "pods" in API group ""'
    ' in the namespace "team-a"'
)
QUOTA = 'pods "a" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=8, limited: pods=8'
SECURITY = 'pods "a" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostIPC=true)'
ENDING = 'pods "a" is forbidden: unable to create new content in namespace team-a because it is being terminated'


@pytest.mark.parametrize(
    ("answer", "error_type"),
    [
        (refused(409, "AlreadyExists", 'pods "a" already exists'), errors.AlreadyExists),
        (refused(409, "Conflict", "the object has been modified"), errors.UpdateConflict),
        (refused(403, "Forbidden", RBAC), errors.Forbidden),
        (refused(403, "Forbidden", QUOTA), errors.QuotaExceeded),
        (refused(403, "Forbidden", SECURITY), errors.Rejected),
        (refused(403, "Forbidden", ENDING), errors.Rejected),
        (refused(404, "NotFound", 'namespaces "team-a" not found'), errors.NotFound),
        (refused(410, "Expired", "too old resource version: 1 (9)"), errors.Gone),
        (refused(410, "Gone", "too old resource version"), errors.Gone),
        (refused(422, "Invalid", 'Pod "a" is invalid: spec.containers: Required value'), errors.Rejected),
        (refused(400, "BadRequest", "strict decoding error"), errors.Rejected),
        (refused(413, "RequestEntityTooLarge", "limit is 3145728"), errors.Rejected),
        (refused(500, "InternalError", "failed calling webhook"), errors.Unavailable),
        (refused(401, "Unauthorized", "Unauthorized"), errors.Unavailable),
        (ApiResponse(502, b"<html>Bad Gateway</html>"), errors.Unavailable),
        (ApiResponse(None, b"Connection refused"), errors.Unavailable),
    ],
)
def test_type(answer: ApiResponse, error_type: type[errors.ApiError]) -> None:
    assert type(api_error_of(answer, "create", POD, "team-a")) is error_type


def test_a_missing_right_is_named_with_verb_resource_and_namespace() -> None:
    text = str(api_error_of(refused(403, "Forbidden", RBAC), "create", POD, "team-a"))
    assert text.startswith("the operator may not create pods in namespace team-a; grant its service account that verb")


def test_the_group_is_named_where_there_is_one_and_the_namespace_where_there_is_one() -> None:
    text = str(api_error_of(refused(404, "NotFound", "not here"), "list", RLJOB, None))
    assert text == "cannot list rljobs.rljob.dev: not here"


def test_words_that_are_no_json_are_kept() -> None:
    text = str(api_error_of(ApiResponse(502, b"<html>Bad Gateway</html>"), "get", POD, "a"))
    assert text == "cannot get pods in namespace a: HTTP status 502: <html>Bad Gateway</html>"
    assert str(api_error_of(ApiResponse(503, b""), "get", POD, "a")).endswith("HTTP status 503: ")
    assert str(api_error_of(ApiResponse(None, b"silent for 90 s"), "watch", POD, "a")).endswith(": silent for 90 s")
