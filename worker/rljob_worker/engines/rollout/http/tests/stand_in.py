"""A server on loopback with the published routes of SGLang and vLLM, over stock transformers."""

from __future__ import annotations

import asyncio
import json
import threading
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.sampling import sample
from rljob_worker.weight_index import INDEX

Body = dict[str, Any]


class StandIn:
    """In a thread of its own. SGLang's draws belong to seed and position, vLLM's to seed and place in the call."""

    def __init__(self, path: str, token: str | None = None) -> None:
        """path: of the model that it starts with."""
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.token = token
        self.version = "default"
        self.calls: list[tuple[str, Body]] = []
        """Routes that were called, with their bodies."""
        self.refusal: tuple[int, str] | None = None
        """Status and text of every answer; None: as it should be."""
        self.spoil: Body = {}
        """Fields that an answer of a generating route has otherwise."""
        self.is_paused = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner, port = asyncio.run_coroutine_threadsafe(self._started(), self._loop).result()
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _started(self) -> tuple[web.AppRunner, int]:
        app = web.Application(middlewares=[self._answered], client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/generate", self._sglang),
                web.post("/update_weights_from_disk", self._update_from_disk),
                web.post("/inference/v1/generate", self._vllm),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.post("/collective_rpc", self._collective_rpc),
                web.post("/reset_prefix_cache", self._reset),
                web.post("/update_weight_version", self._name),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    @web.middleware
    async def _answered(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="no")
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], text=self.refusal[1])
        body = await request.json() if request.method == "POST" else {}
        self.calls.append((request.path, body))
        result: web.StreamResponse = web.json_response(await handler(request, body), dumps=json.dumps)
        return result

    async def _health(self, request: web.Request, body: Body) -> Body:
        return {}

    # ---- SGLang

    async def _sglang(self, request: web.Request, body: Body) -> Body:
        params = body["sampling_params"]
        assert body["return_logprob"] is True
        tokens, log_probs, finish = self._sampled(
            body["input_ids"], params, params["max_new_tokens"], params["sampling_seed"], len(body["input_ids"])
        )
        entries = [[log_prob, token, None] for token, log_prob in zip(tokens, log_probs, strict=True)]
        about = {
            "output_token_logprobs": entries,
            "finish_reason": {"type": finish},
            "weight_version": self.version,
        }
        return {"text": "", "output_ids": tokens, "meta_info": about | self.spoil}

    async def _update_from_disk(self, request: web.Request, body: Body) -> Body:
        message = self._load(body["model_path"])
        if message is None:
            self.version = body["weight_version"]
        return {"success": message is None, "message": message or "Succeeded.", "num_paused_requests": 0}

    # ---- vLLM

    async def _vllm(self, request: web.Request, body: Body) -> Body:
        params = body["sampling_params"]
        assert not self.is_paused and params["logprobs"] == 0 and params["ignore_eos"] is True
        tokens, log_probs, finish = self._sampled(body["token_ids"], params, params["max_tokens"], params["seed"], 0)
        content = [
            {"token_id": token, "logprob": log_prob, "rank": 1, "top_logprobs": []}
            for token, log_prob in zip(tokens, log_probs, strict=True)
        ]
        spans = [{"version": self.version, "start": 0, "end": len(tokens)}]
        choice = {"index": 0, "token_ids": tokens, "logprobs": {"content": content}, "finish_reason": finish}
        return {
            "request_id": "1",
            "output_mode": "tokens",
            "choices": [choice | {"weight_versions": spans} | self.spoil],
        }

    async def _pause(self, request: web.Request, body: Body) -> Body:
        assert request.query["mode"] == "abort"
        self.is_paused = True
        return {"status": "paused"}

    async def _resume(self, request: web.Request, body: Body) -> Body:
        self.is_paused = False
        return {"status": "resumed"}

    async def _collective_rpc(self, request: web.Request, body: Body) -> Body:
        assert self.is_paused and body["method"] == "reload_weights"
        message = self._load(body["kwargs"]["weights_path"])
        return {"results": [None]} if message is None else {"error": {"message": message}}

    async def _reset(self, request: web.Request, body: Body) -> Body:
        return {"success": True}

    async def _name(self, request: web.Request, body: Body) -> Body:
        self.version = body["new_version"]
        return {"success": True, "new_version": self.version}

    # ---- the model

    def _load(self, folder: str) -> str | None:
        """Take the weights of a folder; why it cannot."""
        try:
            index = json.loads(Path(folder, INDEX).read_text())
            tensors = {
                name: item
                for file in set(index["weight_map"].values())
                for name, item in load_file(Path(folder, file)).items()
            }
            _, unexpected = self.model.load_state_dict(tensors, strict=False)
            return f"unexpected {unexpected}" if unexpected else None
        except OSError as error:
            return str(error)

    def _sampled(
        self, prompt: list[int], params: Body, most: int, seed: int, first: int
    ) -> tuple[list[int], list[float | None], str]:
        sampling = Sampling(params["temperature"], params["top_p"], max(0, params["top_k"]), params["min_p"])
        tokens, log_probs, cache, fed = list[int](), list[float | None](), None, prompt
        for number in range(most):
            with torch.no_grad():
                output = self.model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            draws = np.array([first + number], np.int64)
            drawn, log_prob = sample(output.logits[:, -1], sampling, np.array([seed], np.uint64), draws)
            tokens.append(int(drawn[0]))
            log_probs.append(float(log_prob[0]) if isfinite(float(log_prob[0])) else None)
            fed = tokens[-1:]
            if tokens[-1] in params["stop_token_ids"]:
                return tokens, log_probs, "stop"
        return tokens, log_probs, "length"
