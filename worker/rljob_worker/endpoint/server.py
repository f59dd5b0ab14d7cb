"""The server: routes, limits of what it takes, and who is asked.

    endpoint = AgentEndpoint(EndpointSettings(("actor",)))
    await endpoint.start()
    async with endpoint.keys.registered(player) as (key, registration):
        ...                      # an agent calls endpoint.base_url with that key
    await endpoint.close()

What a client sends cannot end it: errors become answers, and neither keys nor what is said are logged.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from rljob_api.vocabulary import keys
from rljob_worker.endpoint import answers
from rljob_worker.endpoint.calls import PolicyTurn, RequestRefused, Say
from rljob_worker.endpoint.chat_bodies import chat_call
from rljob_worker.endpoint.event_stream import EventStream, reading
from rljob_worker.endpoint.json_bodies import json_object
from rljob_worker.endpoint.keys import Keys, Registration
from rljob_worker.endpoint.retries import CallIdentity, SharedCall
from rljob_worker.endpoint.sampling_rules import SamplingRules
from rljob_worker.endpoint.task_offers import TaskOffers, task_result, wait_of
from rljob_worker.endpoint.token_bodies import token_call
from rljob_worker.errors import InvalidJob

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"
TASK, RESULT = "/rljob/v1/task", "/rljob/v1/result"
HOST, ALL_ADDRESSES = "127.0.0.1", "0.0.0.0"
MOST_BODY_BYTES = 16 << 20
LINGER_SECONDS = 2.0

log = logging.getLogger("rljob.endpoint")
_quiet = logging.getLogger("rljob.endpoint.http")
_quiet.disabled = True  # on a request that is no HTTP the library quotes it, with its key


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How a server answers."""

    models: tuple[str, ...]
    """Names of the policy; the first is its own."""
    rules: SamplingRules = field(default_factory=SamplingRules)
    wait_seconds: float = 600.0
    """How long a call may take, from its last byte on."""
    receive_seconds: float = 60.0
    """How long headers may take, and then a body; and a client to read a part of an answer."""
    alive_seconds: float = 15.0
    """After how long a stream that has nothing to say yet says so."""
    port: int = 0
    """Where it listens; 0: a port that is free."""
    certificates: Path | None = None
    """A folder with its certificate, the key of that and the authority's. With one, `port` is for other pods, over TLS,
    and loopback has a port that is free."""


class AgentEndpoint:
    """One worker's, on loopback, and for other pods where it has certificates. For one event loop."""

    def __init__(self, settings: EndpointSettings, offers: TaskOffers | None = None) -> None:
        """offers: trajectories that agents may take; None where each is played by a program that was given its key."""
        self.settings, self.keys, self._offers = settings, Keys(), offers
        self.port = 0
        """On loopback; known once it is started."""
        self.pods_port = 0
        """For other pods, where it has certificates."""
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        """What clients of OpenAI take as `base_url`."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def num_connections(self) -> int:
        """Clients that are connected now."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    async def start(self) -> None:
        """Listen. Raises InvalidJob for a port that another process has."""
        application = web.Application(client_max_size=MOST_BODY_BYTES)
        application.router.add_post(CHAT, self._guarded(self._chat))
        application.router.add_post(TOKENS, self._guarded(self._tokens))
        if self._offers is not None:
            application.router.add_post(TASK, _answering(partial(self._task, self._offers)))
            application.router.add_post(RESULT, self._guarded(self._result))
        application.router.add_get("/v1/models", self._guarded(self._models))
        application.router.add_get("/v1/models/{name}", self._guarded(self._model))
        application.router.add_route("*", "/{path:.*}", self._guarded(_no_route))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_quiet,
            # from the connection or the last answer on, for all headers of a request
            keepalive_timeout=self.settings.receive_seconds,
            handler_cancellation=True,
            shutdown_timeout=0.0,
            # for a client that still sends a body which nobody wants to see why
            lingering_time=LINGER_SECONDS,
        )
        await self._runner.setup()
        certificates, port = self.settings.certificates, self.settings.port
        self.port = await self._listen(HOST, port if certificates is None else 0)
        if certificates is not None:
            self.pods_port = await self._listen(ALL_ADDRESSES, port, server_context(certificates))

    async def _listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """Take connections there too; the port."""
        assert self._runner is not None
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=context).start()
        except OSError as error:
            message = f"rollout.conversation.endpoint.port: nothing can listen at {host}:{port}"
            raise InvalidJob(f"{message}: {error.strerror}") from error
        return int(self._runner.addresses[-1][1])

    async def close(self) -> None:
        """End every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # ---- routes

    def _guarded(
        self, answer: Callable[[web.Request, Registration], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A handler that knows the caller, before anything of its body is read, and whose errors are answers."""

        async def handle(request: web.Request) -> web.StreamResponse:
            registration = self.keys.owner(request.headers.get("Authorization"))
            try:
                return await answer(request, registration)
            except RequestRefused as error:
                registration.last_refusal = error.message
                raise

        return _answering(handle)

    async def _chat(self, request: web.Request, registration: Registration) -> web.StreamResponse:
        body = await self._body(request)
        identity = CallIdentity.of(CHAT, body, request.headers)
        fields = json_object(body)
        model, call = self._model_of(fields), chat_call(fields, self.settings.rules)
        del body, fields
        answer_id = f"chatcmpl-{secrets.token_hex(12)}"

        async def make(say: Say) -> PolicyTurn:
            return await self._bounded(registration.player.chat(call, say if call.is_streamed else None))

        with registration.calls.joined(identity, make) as shared:
            if call.is_streamed:
                stream = EventStream(request, self.settings.receive_seconds, self.settings.alive_seconds)
                await stream.send(shared, answers.StreamedAnswer(answer_id, model, call))
                _delivered(registration, shared)
                return stream.response
            completion = answers.completion(answer_id, model, call, await shared.answer())
        return await self._deliver(request, registration, shared, completion)

    async def _tokens(self, request: web.Request, registration: Registration) -> web.StreamResponse:
        body = await self._body(request)
        identity = CallIdentity.of(TOKENS, body, request.headers)
        fields = json_object(body)
        model = self._model_of(fields) if fields.get("model") is not None else self.settings.models[0]
        call = token_call(fields, self.settings.rules)
        del body, fields

        async def make(say: Say) -> PolicyTurn:
            return await self._bounded(registration.player.generate(call))

        with registration.calls.joined(identity, make) as shared:
            answer = await shared.answer()
        answer_id = f"generate-{secrets.token_hex(12)}"
        return await self._deliver(request, registration, shared, answers.tokens(answer_id, model, call, answer))

    async def _task(self, offers: TaskOffers, request: web.Request) -> web.StreamResponse:
        """A trajectory for an agent; one that does not get it leaves it to others."""
        offers.require_agent(request.headers.get("Authorization"))
        body = await self._body(request)
        offer = await offers.take(wait_of(json_object(body) if body else {}))
        if offer is None:
            return web.Response(status=204)
        url = f"{request.scheme}://{request.host}/v1"  # by which the agent has come
        answer = {"base_url": url, "api_key": offer.key, "model": self.settings.models[0], **offer.task}
        try:
            return await self._written(request, answer)
        except BaseException:
            offers.give_back(offer)
            raise

    async def _result(self, request: web.Request, registration: Registration) -> web.StreamResponse:
        if registration.result is None:
            message = "the reward of this trajectory is in the last line that its program prints"
            raise RequestRefused(message, status=409, code="conflict")
        result = task_result(json_object(await self._body(request)))
        if not registration.result.done():  # a client that repeats it says nothing new
            registration.result.set_result(result)
        return web.json_response({})

    async def _models(self, request: web.Request, registration: Registration) -> web.StreamResponse:
        return web.json_response(answers.models(list(self.settings.models)))

    async def _model(self, request: web.Request, registration: Registration) -> web.StreamResponse:
        return web.json_response(answers.model(self._model_of({"model": request.match_info["name"]})))

    # ---- parts of a call

    async def _body(self, request: web.Request) -> bytes:
        try:
            if (request.content_length or 0) > MOST_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MOST_BODY_BYTES, request.content_length or 0)
            async with asyncio.timeout(self.settings.receive_seconds):
                return await request.read()
        except TimeoutError:
            message = f"the body was not there after {self.settings.receive_seconds:g} s"
            raise RequestRefused(message, status=408, code="timeout") from None
        except web.HTTPRequestEntityTooLarge:
            message = f"the body has more than {MOST_BODY_BYTES} bytes"
            raise RequestRefused(message, status=413, code="too_large") from None
        except web.RequestPayloadError:
            raise RequestRefused("the body is cut off, or not encoded as its headers say") from None

    def _model_of(self, fields: Mapping[str, Any]) -> str:
        name = fields.get("model")
        if not isinstance(name, str) or name not in self.settings.models:
            shown = repr(name)[:100]
            message = f"there is no model {shown}; there is {', '.join(self.settings.models)}"
            raise RequestRefused(message, status=404, code="model_not_found", param="model")
        return name

    async def _bounded(self, answer: Awaitable[PolicyTurn]) -> PolicyTurn:
        """Wait for a turn, also while weights change."""
        try:
            async with asyncio.timeout(self.settings.wait_seconds):
                return await answer
        except TimeoutError:
            message = f"the call was not answered within {self.settings.wait_seconds:g} s"
            raise RequestRefused(message, status=503, code="timeout") from None

    async def _deliver(
        self, request: web.Request, registration: Registration, shared: SharedCall, body: answers.Body
    ) -> web.StreamResponse:
        response = await self._written(request, body)
        _delivered(registration, shared)
        return response

    async def _written(self, request: web.Request, body: answers.Body) -> web.StreamResponse:
        """Write an answer before its handler returns, so that it is known whether the client listened."""
        response = web.json_response(body)
        async with reading(request, self.settings.receive_seconds):
            await response.prepare(request)
            await response.write_eof()
        return response


def server_context(certificates: Path) -> ssl.SSLContext:
    """TLS as the server of a folder's certificate. Raises InvalidJob for a folder without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificates / keys.TLS_CERTIFICATE, certificates / keys.TLS_KEY)
    except OSError as error:
        message = f"rollout.conversation.endpoint.listen: Pods: no certificate can be read from {certificates}: {error}"
        raise InvalidJob(message) from error
    return context


def _answering(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler whose errors are answers."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await answer(request)
        except RequestRefused as error:
            return _refused(error)
        except (ConnectionError, asyncio.CancelledError, web.HTTPException):
            raise
        except Exception as error:
            log.exception("a call was not answered: %s", type(error).__name__)
            return _refused(RequestRefused("an error of the worker", status=500, code="internal"))

    return handle


def _delivered(registration: Registration, shared: SharedCall) -> None:
    shared.is_delivered = True
    registration.num_calls += 1
    registration.last_refusal = None


async def _no_route(request: web.Request, registration: Registration) -> web.StreamResponse:
    message = (
        f"there is no {request.method[:10]} {request.path[:100]}; there are POST {CHAT}, POST {TOKENS}, GET /v1/models"
    )
    raise RequestRefused(message, status=404, code="not_found")


def _refused(error: RequestRefused) -> web.Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return web.json_response(answers.refusal(error), status=error.status, headers=headers)
