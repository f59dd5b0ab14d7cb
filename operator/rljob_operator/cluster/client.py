"""`ApiCluster`: the six verbs over HTTP, with rate limit, retries and typed errors."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from rljob_operator.cluster.api import FIELD_MANAGER, MOST_ITEMS, Object, Page
from rljob_operator.cluster.connection import ApiConnection, ApiRequest
from rljob_operator.cluster.errors import NotFound, Unavailable, UpdateConflict, api_error_of
from rljob_operator.cluster.kinds import API_GROUP, ResourceKind
from rljob_operator.cluster.rate_limit import RateLimit
from rljob_operator.cluster.retry_policy import ApiResponse, RetryPolicy

_APPLY = "application/apply-patch+yaml; charset=utf-8"  # with its charset the client library sends bytes as they are

# The server ends a watch after so long; it is opened again from where it was, which spreads load and ends silence.
_WATCH_SECONDS = 300

_NOT_RAW_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Control characters and breaks of lines that JSON allows in a string as they are."""


@dataclass(frozen=True)
class ApiCluster:
    """Implements `rljob_operator.cluster.api.Cluster`.  Watches are not rate limited."""

    connection: ApiConnection
    rate_limit: RateLimit
    retry: RetryPolicy = field(default=RetryPolicy())
    watch_silence_seconds: float = 90.0
    most_page_bytes: int = 8 << 20
    """Size of a page of a list. Anybody's object may have megabytes, and five hundred of them more than our memory."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object | None:
        request = ApiRequest("get", "GET", kind.path(namespace, name))
        try:
            return await self._object(request, kind, namespace)
        except NotFound:
            return None

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        *,
        labels: str = "",
        limit: int = MOST_ITEMS,
        continue_: str | None = None,
    ) -> Page:
        while True:
            query = (("labelSelector", labels), ("limit", str(limit)), ("continue", continue_ or ""))
            most = None if limit == 1 else self.most_page_bytes
            request = ApiRequest("list", "GET", kind.path(namespace), query=_without_empty(query), most_bytes=most)
            answer = await self._send(request)
            if not answer.is_cut:
                break
            limit //= 2
        page = _loaded(answer, request, kind, namespace)
        metadata = page["metadata"]
        is_small = len(answer.body) * 4 <= self.most_page_bytes
        return Page(
            tuple(page["items"] or ()),
            metadata["resourceVersion"],
            metadata.get("continue") or None,
            min(2 * limit, MOST_ITEMS) if is_small else limit,
        )

    async def watch(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", resource_version: str
    ) -> AsyncGenerator[tuple[str, Object], None]:
        query = (
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("labelSelector", labels),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
        )
        request = ApiRequest("watch", "GET", kind.path(namespace), query=_without_empty(query))
        async for part in self.connection.stream(request, self.watch_silence_seconds):
            if isinstance(part, bytes):
                yield _event(part, kind, namespace)
            elif not part.is_success:
                raise api_error_of(part, "watch", kind, namespace)

    async def create(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        # strict: a misspelt field of a user's pod template is refused here, rather than dropped without a word
        query = (("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"))
        return await self._object(
            ApiRequest("create", "POST", kind.path(namespace), query=query, body=_complete(kind, body)), kind, namespace
        )

    async def apply(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        return await self._apply(kind, namespace, body, subresource=None)

    async def apply_status(
        self, kind: ResourceKind, namespace: str | None, body: Object, *, manager: str = FIELD_MANAGER
    ) -> Object:
        return await self._apply(kind, namespace, body, subresource="status", manager=manager)

    async def delete(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> bool:
        policy = "Foreground" if kind.stays_with_its_own else "Background"
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._object(
                ApiRequest("delete", "DELETE", kind.path(namespace, name), body=options), kind, namespace
            )
        except NotFound:
            return False
        except UpdateConflict:
            if uid is None:
                raise
            return False  # another object bears the name by now
        return True

    async def served_versions(self) -> frozenset[str]:
        """The versions of all API groups but the core's: `apps/v1`, `kueue.x-k8s.io/v1beta2`."""
        answer = await self._object(ApiRequest("get", "GET", "/apis"), API_GROUP, None)
        return frozenset(version["groupVersion"] for group in answer["groups"] for version in group["versions"])

    async def _apply(
        self,
        kind: ResourceKind,
        namespace: str | None,
        body: Object,
        subresource: str | None,
        manager: str = FIELD_MANAGER,
    ) -> Object:
        path = kind.path(namespace, body["metadata"]["name"], subresource)
        query = (("fieldManager", manager), ("force", "true"))
        request = ApiRequest(
            "patch", "PATCH", path, query=query, body=apply_body(_complete(kind, body)), content_type=_APPLY
        )
        return await self._object(request, kind, namespace)

    async def _object(self, request: ApiRequest, kind: ResourceKind, namespace: str | None) -> Object:
        return _loaded(await self._send(request), request, kind, namespace)

    async def _send(self, request: ApiRequest) -> ApiResponse:
        num_sent = 0
        while True:
            await self.rate_limit.wait()
            answer = await self.connection.send(request)
            num_sent += 1
            pause = self.retry.pause_seconds(answer, num_sent, random.random())
            if pause is None:
                return answer
            await asyncio.sleep(pause)


def _loaded(answer: ApiResponse, request: ApiRequest, kind: ResourceKind, namespace: str | None) -> Object:
    if not answer.is_success:
        raise api_error_of(answer, request.verb, kind, namespace)
    try:
        loaded: Object = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise Unavailable(request.verb, kind, namespace, f"the answer is not JSON: {error}") from error
    return loaded


def _complete(kind: ResourceKind, body: Object) -> Object:
    """A server-side apply must say apiVersion and kind; items of a list do not."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}


def _without_empty(query: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in query if value)


def _event(line: bytes, kind: ResourceKind, namespace: str | None) -> tuple[str, Object]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unavailable("watch", kind, namespace, f"an event is not JSON: {error}") from error
    if event["type"] == "ERROR":
        status = event["object"]
        raise api_error_of(ApiResponse(status.get("code"), json.dumps(status).encode()), "watch", kind, namespace)
    return event["type"], event["object"]


def apply_body(body: Any) -> bytes:
    """The body of a server-side apply, as JSON that is YAML as well, which the API server takes literally.

    YAML has no surrogate pairs: an object with an emoji, which gloo's errors have, is refused in JSON's escapes.
    """
    text = json.dumps(body, ensure_ascii=False)
    escaped = _NOT_RAW_IN_YAML.sub(lambda result: f"\\u{ord(result[0]):04x}", text)
    return escaped.encode("utf-8", "replace")
