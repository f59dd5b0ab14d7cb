"""A kind is watched while, and only while, the cluster has it."""

from __future__ import annotations

import asyncio

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kind_watch import KindWatch, ServedApis
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2, ResourceKind
from rljob_operator.cluster.reflector import Reflector
from rljob_operator.vocabulary.key import Key

V1BETA1, V1BETA2 = WORKLOAD_KUEUE.api_version, WORKLOAD_KUEUE_V1BETA2.api_version


KEY = Key("team", "small")


class Reflected(Reflector):
    """What a reflector of a kind does, in a diary."""

    def __init__(self, kind: ResourceKind, diary: list[str]) -> None:
        self.kind = kind
        self._diary = diary
        self.is_synced = False

    @property
    def synced(self) -> bool:
        return self.is_synced

    def of(self, key: Key) -> tuple[Object, ...]:
        return ()

    async def run(self) -> None:
        self._diary.append(f"watch {self.kind.version}")
        try:
            await asyncio.Event().wait()
        finally:
            self._diary.append(f"end {self.kind.version}")


def test_watch_follows_what_the_cluster_serves() -> None:
    """Kueue is installed, upgraded and removed while the operator runs."""
    served_in_turn = [frozenset[str](), frozenset({V1BETA1}), frozenset({V1BETA1, V1BETA2}), frozenset[str]()]
    diary: list[str] = []
    reflected: list[Reflected] = []

    def reflect(kind: ResourceKind) -> Reflected:
        reflected.append(Reflected(kind, diary))
        return reflected[-1]

    async def read() -> frozenset[str]:
        return served_in_turn.pop(0)

    async def scene() -> None:
        served = ServedApis(read)
        watch = KindWatch(served, (WORKLOAD_KUEUE_V1BETA2, WORKLOAD_KUEUE), reflect)
        running = asyncio.create_task(watch.run())
        while served_in_turn:
            await served.refresh()
            for _ in range(10):
                await asyncio.sleep(0)
            assert watch.of(KEY) is None, "not known yet"
            for item in reflected:
                item.is_synced = True
            diary.append("refreshed" if watch.of(KEY) is None else "known")
        running.cancel()

    asyncio.run(scene())
    assert diary == [
        "refreshed",
        "watch v1beta1", "known",
        "end v1beta1", "watch v1beta2", "known",
        "end v1beta2", "refreshed",
    ]  # fmt: skip


def test_a_kind_that_nobody_wants_is_not_watched() -> None:
    async def read() -> frozenset[str]:
        return frozenset({V1BETA1})

    async def scene() -> KindWatch:
        served = ServedApis(read)
        watch = KindWatch(served, (), lambda kind: Reflected(kind, []))
        running = asyncio.create_task(watch.run())
        await served.refresh()
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        return watch

    watch = asyncio.run(scene())
    assert watch.kind is None and watch.of(KEY) is None
