"""Clients of `endpoint.py`, coroutines of one process: for each line of standard input, `whole` or `stream`, a call of
each.

python benchmarks/endpoint_clients.py PORT TOKEN CLIENTS
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp


async def play(session: aiohttp.ClientSession, root: str, token: str, is_streamed: bool) -> None:
    """Take a trajectory, ask for a turn, and say that it is over."""
    async with session.post(root + "/rljob/v1/task", headers={"Authorization": f"Bearer {token}"}) as response:
        task = await response.json()
    body = {"model": task["model"], "messages": task["messages"], "stream": is_streamed}
    headers = {"Authorization": f"Bearer {task['api_key']}"}
    async with session.post(task["base_url"] + "/chat/completions", json=body, headers=headers) as response:
        text = await response.text()
        assert response.status == 200 and ("[DONE]" in text) == is_streamed, text[:500]
    async with session.post(root + "/rljob/v1/result", json={"reward": 1}, headers=headers) as response:
        assert response.status == 200


async def play_all(root: str, token: str, num_clients: int, is_streamed: bool) -> None:
    """All at once."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(play(session, root, token, is_streamed) for _ in range(num_clients)))


if __name__ == "__main__":
    for line in sys.stdin:
        asyncio.run(
            play_all(f"http://127.0.0.1:{sys.argv[1]}", sys.argv[2], int(sys.argv[3]), line.strip() == "stream")
        )
