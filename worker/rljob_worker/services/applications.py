"""The shipped applications: Ray Serve around the models of `models`."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError, RepositoryNotFoundError
from ray import serve
from ray.serve import Application, Deployment
from starlette.requests import Request
from starlette.responses import JSONResponse

from rljob_api.catalogue.services import SHIPPED
from rljob_worker.errors import InvalidJob
from rljob_worker.process.bounded import HUB_SECONDS, within
from rljob_worker.services.models import MODELS
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.request_batching import RequestBatcher
from rljob_worker.services.requests import BadRequest, rows_of_body


class Answering:
    """One copy of a shipped model: rewards of rows at its route, everything else the model answers below it."""

    def __init__(self, name: str, options: Mapping[str, Any], place: ModelPlacement) -> None:
        module, _, model = MODELS[name].partition(":")
        imported = importlib.import_module(f"rljob_worker.services.models.{module}")
        self._model = getattr(imported, model)(SHIPPED[name].model_validate(options), place)
        self._one_at_a_time = asyncio.Lock()
        self._rewards = RequestBatcher(lambda rows: self._computed(self._model.rewards, rows))

    async def __call__(self, request: Request) -> JSONResponse:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).rstrip("/")
        try:
            try:
                body = await request.json()
            except ValueError as error:
                raise BadRequest(f"the request is not JSON: {error}") from error
            if path:
                return JSONResponse(await self._computed(self._model.answer, path, body))
            return JSONResponse({"rewards": await self._rewards.of(rows_of_body(body))})
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    async def _computed(self, function: Any, *arguments: Any) -> Any:
        """In a thread, so that the copy answers probes meanwhile."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(function, *arguments)


ANSWERING: Deployment = serve.deployment(max_ongoing_requests=64)(Answering)


def require_model(path: str) -> None:
    """Raises InvalidJob where there is neither such a directory nor such a model of the Hub: Ray Serve would start a
    copy again and again that can never start, and end minutes later. A Hub that does not answer now may do so later: it
    is left to the copies."""
    if Path(path).is_dir():
        return
    try:
        within(HUB_SECONDS, lambda: hf_hub_download(path, "config.json", etag_timeout=HUB_SECONDS))
    except (RepositoryNotFoundError, RemoteEntryNotFoundError, HFValidationError) as error:
        raise _no_model(path, error) from error
    except (OSError, HTTPError) as error:
        if constants.HF_HUB_OFFLINE:
            raise _no_model(path, error) from error


def _no_model(path: str, error: Exception) -> InvalidJob:
    reason = str(error).strip().partition("\n")[0]
    return InvalidJob(f"options.path: there is no directory {path}, and the Hub did not give it: {reason}")


def reward_model(options: Mapping[str, Any], place: ModelPlacement = ON_CPU, **copies: Any) -> Application:
    """A sequence classifier with one output. copies: `num_replicas` or `autoscaling_config`, and `ray_actor_options`,
    as Ray Serve has them."""
    return _serving("reward_model", options, place, copies)


def process_reward_model(options: Mapping[str, Any], place: ModelPlacement = ON_CPU, **copies: Any) -> Application:
    """A token classifier that is read at the end of each step."""
    return _serving("process_reward_model", options, place, copies)


def judge(options: Mapping[str, Any], place: ModelPlacement = ON_CPU, **copies: Any) -> Application:
    """A generating model that is asked a rubric."""
    return _serving("judge", options, place, copies)


def embedding(options: Mapping[str, Any], place: ModelPlacement = ON_CPU, **copies: Any) -> Application:
    """A model that turns texts into vectors."""
    return _serving("embedding", options, place, copies)


def video_encoder(options: Mapping[str, Any], place: ModelPlacement = ON_CPU, **copies: Any) -> Application:
    """V-JEPA 2, which turns videos of episodes into vectors."""
    return _serving("video_encoder", options, place, copies)


def _serving(name: str, options: Mapping[str, Any], place: ModelPlacement, copies: Mapping[str, Any]) -> Application:
    require_model(SHIPPED[name].model_validate(options).path)
    return ANSWERING.options(**copies).bind(name, dict(options), place)
