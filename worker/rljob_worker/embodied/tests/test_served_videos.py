"""Videos that a service encodes, over real HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.catalogue.services import VideoEncoderOptions
from rljob_worker.embodied.served_videos import ServedVideos
from rljob_worker.embodied.tests.test_video_encoders import png, save_vjepa2
from rljob_worker.rewards.access import ServiceAccess
from rljob_worker.rewards.service import ServiceError
from rljob_worker.services.models.video_encoder import ServedVideoEncoder
from rljob_worker.services.requests import BadRequest
from rljob_worker.vision.vjepa2 import VideoModel

VALUES = (0, 50, 100, 200)
VIDEO = [png(value) for value in VALUES]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vjepa2(tmp_path_factory.mktemp("vjepa2"))


@contextmanager
def served(*answers: tuple[int, Any], model: Path | None = None) -> Iterator[tuple[ServedVideos, list[float]]]:
    """What is asked of it is answered by these, one after another, and then by the model. Yields also the pauses."""
    waiting, pauses = list(answers), list[float]()
    encoder = None if model is None else ServedVideoEncoder(VideoEncoderOptions(path=str(model)))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = waiting.pop(0) if waiting else (200, None)
            if self.headers["Authorization"] != "Bearer s3cret":
                status, answer = 401, {"error": "who are you?"}
            elif encoder is not None:
                answer = encoder.answer(self.path.removeprefix("/encoder"), body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/encoder"
    access = ServiceAccess(name="encoder", url=url, token="s3cret", batch_rows=1, concurrency=1)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    try:
        yield ServedVideos(access, pause), pauses
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_service_says_what_the_model_says(model: Path) -> None:
    frames = np.stack([np.full((16, 16, 3), value, np.uint8) for value in VALUES])
    with served(model=model) as (videos, _):
        assert videos.embedding(VIDEO) == pytest.approx(VideoModel("path", str(model)).encode(frames), abs=1e-6)


def test_a_service_that_starts_again_is_waited_for() -> None:
    with served((503, {}), (502, {}), (200, {"embeddings": [[1.0]]})) as (videos, pauses):
        assert videos.embedding(VIDEO) == [1.0] and pauses == [1.0, 2.0]


def test_a_service_that_stays_away_costs_the_episode() -> None:
    with (
        served(*[(503, {})] * 8) as (videos, pauses),
        pytest.raises(ServiceError, match="encoder .* answers 503"),
    ):
        videos.embedding(VIDEO)
    assert sum(pauses) == 127


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [(400, {"error": "3 frames"}, "answers 400: .*3 frames"), (200, {"rewards": [1]}, r'not {"embeddings": ')],
)
def test_what_it_refuses_is_not_asked_again(status: int, answer: Any, words: str) -> None:
    with served((status, answer)) as (videos, pauses), pytest.raises(ServiceError, match=words):
        videos.embedding(VIDEO)
    assert pauses == []


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/embeddings", {"input": "text"}, "has no route /v1/embeddings; it has /v1/videos"),
        ("/v1/videos", {"videos": []}, "with one frame or more in each"),
        ("/v1/videos", {"videos": [["no picture"]]}, "is no picture of the size of the others"),
        ("/v1/videos", {"videos": [[base64.b64encode(VIDEO[0]).decode()] * 3]}, "3 frames, .* write a multiple of 2"),
    ],
)
def test_what_is_no_video_is_refused(model: Path, path: str, body: Any, words: str) -> None:
    encoder = ServedVideoEncoder(VideoEncoderOptions(path=str(model)))
    with pytest.raises(BadRequest, match=words):
        encoder.answer(path, body)
    with pytest.raises(BadRequest, match="rewards no rows"):
        encoder.rewards([])
