"""`Connection`: one HTTP session with an API server; sends one request at a time, and knows no verbs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from rljob_operator.cluster.login import Login, NoLogin
from rljob_operator.cluster.retry_policy import ApiResponse

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_UNAUTHORIZED = 401

RequestObserver = Callable[[str, str], None]
"""Called with verb and code of every request; the code is `error` if it was not answered."""


@dataclass(frozen=True)
class ApiRequest:
    """One HTTP request to the API server."""

    verb: str
    """As RBAC says it: get, list, watch, create, patch, delete."""
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = "application/json"
    most_bytes: int | None = None
    """Bytes of the answer's body, at most: the rest of a longer one is not read."""


@dataclass
class ApiConnection:
    """Use as a context manager.

    The official client does what is delicate: TLS, kubeconfig with its plug-ins, and the token that the kubelet
    rotates.  Of it only `call_api` is used.  Its dynamic client asks for the whole API's resources first, wraps every
    object twice, and reads a watch without noticing silence, while the kinds are known here and JSON is all we want.
    """

    login: Login
    on_request: RequestObserver
    timeout_seconds: float = 30.0
    _client: ApiClient = field(init=False)
    _num_logins: int = field(init=False, default=0)
    _login_lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def __aenter__(self) -> Self:
        configuration = Configuration()
        await self.login.configure(configuration)
        # Every watch holds a connection for its whole life; the rest is bounded by the rate limit.
        configuration.connection_pool_maxsize = 0
        self._client = ApiClient(configuration)
        self._client.user_agent = "rljob-operator"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    @property
    def configuration(self) -> Configuration:
        """Server and credentials, as of the last login."""
        configuration: Configuration = self._client.configuration
        return configuration

    async def send(self, request: ApiRequest) -> ApiResponse:
        """The answer; one with status None when there was none."""
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds, sock_connect=_CONNECT_SECONDS)
        num_logins = self._num_logins
        answer = await self._send_once(request, timeout)
        if answer.status == _UNAUTHORIZED:
            await self._login_again(num_logins)
            answer = await self._send_once(request, timeout)
        return answer

    async def _send_once(self, request: ApiRequest, timeout: aiohttp.ClientTimeout) -> ApiResponse:
        try:
            response = await self._call(request, timeout)
            async with response:
                body = await _body(response.content, request.most_bytes)
            answer = ApiResponse(response.status, body or b"", response.headers.get("Retry-After"), is_cut=body is None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            answer = ApiResponse(None, _words(error, f"no answer within {timeout.total:g} s").encode())
        self.on_request(request.verb, answer.code)
        return answer

    async def stream(self, request: ApiRequest, silence_seconds: float) -> AsyncGenerator[ApiResponse | bytes, None]:
        """First the answer's head, whose body is read only if it is not a success, then line by line what follows.

        Last comes an Answer with status None when the connection broke or nothing came for `silence_seconds`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        num_logins = self._num_logins
        try:
            async with await self._call(request, timeout) as response:
                self.on_request(request.verb, str(response.status))
                if response.status == _UNAUTHORIZED:
                    await self._login_again(num_logins)
                is_success = 200 <= response.status < 300
                yield ApiResponse(response.status, b"" if is_success else await response.read())
                if is_success:
                    async for line in _lines(response.content):
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            yield ApiResponse(None, _words(error, f"silent for {silence_seconds:g} s").encode())

    async def _call(self, request: ApiRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        serialized = await self._client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query),
            header_params={"Accept": "application/json", "Content-Type": request.content_type},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*serialized, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _login_again(self, num_logins: int) -> None:
        """Read the credentials afresh, once for all requests that were refused with the old ones."""
        async with self._login_lock:
            if self._num_logins != num_logins:
                return
            logger.info("the API server no longer takes our credentials; reading them again")
            self._num_logins += 1
            try:
                await self.login.configure(self._client.configuration)
            except NoLogin as error:
                logger.warning("%s", error)


async def _body(content: aiohttp.StreamReader, most_bytes: int | None) -> bytes | None:
    """None for one that is longer."""
    body = bytearray()
    async for part in content.iter_any():
        body += part
        if most_bytes is not None and len(body) > most_bytes:
            return None
    return bytes(body)


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """However long: one byte of an object may be six in JSON, and aiohttp's own lines have an end."""
    begun: list[bytes] = []
    async for part in content.iter_any():
        first, *others = part.split(b"\n")
        begun.append(first)
        for line in others:
            yield b"".join(begun)
            begun = [line]
    if any(begun):
        yield b"".join(begun)


def _words(error: Exception, if_timeout: str) -> str:
    return if_timeout if isinstance(error, TimeoutError) else str(error) or type(error).__name__
