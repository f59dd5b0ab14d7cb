"""Who gets past the gate."""

import asyncio
import json
from pathlib import Path

import pytest

from rljob_worker.services.gate import TokenGate


def through(scope, healthy=Path("/nowhere")):
    """What is sent, and whether the application was asked."""
    sent, asked = [], []

    async def application(scope, receive, send):
        asked.append(scope)

    async def send(message):
        sent.append(message)

    async def receive():
        return {}

    asyncio.run(TokenGate(application, "s3cret", healthy)(scope, receive, send))
    return sent, bool(asked)


def http(*authorization, path="/judge"):
    return {"type": "http", "path": path, "headers": [(b"authorization", item) for item in authorization]}


@pytest.mark.parametrize("scope", [http(b"Bearer s3cret"), http(path="/-/healthz"), {"type": "lifespan"}])
def test_who_has_the_token_or_probes_is_let_in(scope):
    assert through(scope) == ([], True)


@pytest.mark.parametrize(
    "scope",
    [
        http(),
        http(b""),
        http(b"Bearer "),
        http(b"Bearer s3cre"),
        http(b"Bearer s3cret "),
        http(b"s3cret"),
        http(b"Bearer wrong", b"Bearer s3cret"),
        http(b"Bearer s3cret", b"Bearer wrong"),  # an application may look at the other one
        http(path="/-/routes"),
        http(path="/-/healthz/../judge"),
    ],
)
def test_a_stranger_is_refused(scope):
    (start, body), asked = through(scope)
    assert not asked and start["status"] == 401
    assert "token" in json.loads(body["body"])["error"]


@pytest.mark.parametrize("path", ["/judge", "/-/readyz"])
def test_a_stranger_opens_no_socket(path):
    assert through({"type": "websocket", "path": path, "headers": []}) == (
        [{"type": "websocket.close", "code": 1008}],
        False,
    )


def test_a_probe_is_told_by_the_gate_itself_whether_applications_are_healthy(tmp_path):
    """Ray Serve's own answer is 200 as soon as its proxy listens."""
    healthy = tmp_path / "healthy"
    for status in (503, 200):
        (start, _), asked = through(http(path="/-/readyz"), healthy)
        assert (start["status"], asked) == (status, False)
        healthy.touch()


def test_a_gate_without_a_token_is_no_gate():
    with pytest.raises(AssertionError):
        TokenGate(None, "", Path("/nowhere"))
