"""Workloads are watched while, and only while, the cluster has them."""

from __future__ import annotations

import asyncio

from rljob_operator.cluster.kinds import WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2, Kind
from rljob_operator.cluster.served import ServedApis
from rljob_operator.listening.queue_watch import QueueWatch, drop_all_but_metadata

V1BETA1, V1BETA2 = WORKLOAD_KUEUE.api_version, WORKLOAD_KUEUE_V1BETA2.api_version


def test_watch_follows_what_the_cluster_serves() -> None:
    """Kueue is installed, upgraded and removed while the operator runs."""
    served_in_turn = [frozenset[str](), frozenset({V1BETA1}), frozenset({V1BETA1, V1BETA2}), frozenset[str]()]
    diary: list[str] = []

    async def read() -> frozenset[str]:
        return served_in_turn.pop(0)

    async def watch(kind: Kind) -> None:
        diary.append(f"watch {kind.version}")
        try:
            await asyncio.Event().wait()
        finally:
            diary.append(f"end {kind.version}")

    async def scene() -> None:
        served = ServedApis(read)
        running = asyncio.create_task(QueueWatch(served, watch).run())
        while served_in_turn:
            await served.refresh()
            for _ in range(10):
                await asyncio.sleep(0)
            diary.append("refreshed")
        running.cancel()

    asyncio.run(scene())
    assert diary == [
        "refreshed",
        "watch v1beta1", "refreshed",
        "end v1beta1", "watch v1beta2", "refreshed",
        "end v1beta2", "refreshed",
    ]  # fmt: skip


def test_only_metadata_is_kept() -> None:
    item = {"metadata": {"name": "x", "managedFields": [{}]}, "spec": {"podSets": []}, "status": {}}
    drop_all_but_metadata(item)
    assert item == {"metadata": {"name": "x"}}
