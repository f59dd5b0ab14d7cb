"""The server over TLS, as agents of other pods find it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from rljob_api.certificates import issue
from rljob_api.vocabulary import keys
from rljob_worker.endpoint.server import TASK, AgentEndpoint, EndpointSettings
from rljob_worker.endpoint.task_offers import TaskOffer, TaskOffers
from rljob_worker.endpoint.tests.serving import ScriptedPlayer, agent_of, asked
from rljob_worker.errors import InvalidJob
from rljob_worker.local.pods.certificates import write_issued

AGENT = """
import json, os, urllib.request

def post(url, token, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)

task = post(os.environ["RLJOB_ENDPOINT"] + "/task", os.environ["RLJOB_AGENT_TOKEN"], {})
said = post(task["base_url"] + "/chat/completions", task["api_key"], json.loads(os.environ["ASKED"]))
print(task["base_url"], said["choices"][0]["message"]["content"])
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Those of a host that is called by its address, as the attempt issued them."""
    write_issued(issue("job", 1, {"rollout-0": ("127.0.0.1",)}, datetime.now(UTC)), tmp_path)
    return tmp_path / "rollout-0"


def test_an_agent_that_knows_the_authority_plays_over_tls(certificates: Path) -> None:
    """Unchanged: all that it is given besides is SSL_CERT_FILE."""

    async def use() -> None:
        offers = TaskOffers("the token")
        async with agent_of(ScriptedPlayer(), offers, certificates=certificates) as agent:
            url = f"https://127.0.0.1:{agent.endpoint.pods_port}"
            given = {
                "RLJOB_ENDPOINT": url + TASK.removesuffix("/task"),
                "RLJOB_AGENT_TOKEN": "the token",
                "SSL_CERT_FILE": str(certificates / keys.TLS_AUTHORITY),
                "ASKED": json.dumps(asked()),
            }
            with offers.offered(TaskOffer(agent.key, {})):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", AGENT, env={**os.environ, **given}, stdout=subprocess.PIPE
                )
                output, _ = await process.communicate()
            assert output.decode().split() == [url + "/v1", "hello"]
            assert (await agent.post(asked("again")))[0] == 200  # programs that the worker starts, on loopback

    asyncio.run(use())


def test_other_authorities_and_calls_without_tls_get_nothing(certificates: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.crt"
    stranger.write_bytes(issue("job", 2, {"rollout-0": ()}, datetime.now(UTC)).authority)

    async def use() -> None:
        async with agent_of(ScriptedPlayer(), certificates=certificates) as agent:
            host = f"127.0.0.1:{agent.endpoint.pods_port}/v1/models"
            headers = {"Authorization": f"Bearer {agent.key}"}
            context = ssl.create_default_context(cafile=str(stranger))
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await agent.session.get(f"https://{host}", headers=headers, ssl=context)
            with pytest.raises(aiohttp.ClientError):
                await agent.session.get(f"http://{host}", headers=headers)
            known = ssl.create_default_context(cafile=str(certificates / keys.TLS_AUTHORITY))
            async with agent.session.get(f"https://{host}", ssl=known) as answer:
                assert answer.status == 401

    asyncio.run(use())


def test_without_certificates_nothing_listens_for_pods(tmp_path: Path) -> None:
    async def use() -> None:
        endpoint = AgentEndpoint(EndpointSettings(("actor",), certificates=tmp_path))
        with pytest.raises(InvalidJob, match="endpoint.listen: Pods: no certificate can be read from"):
            await endpoint.start()
        await endpoint.close()

    asyncio.run(use())
