"""`call_roll`: hears of all jobs at once when the operator starts."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator.cluster.api import Cluster, pages
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.listening.handlers import News, OnEvent, news_of


async def call_roll(cluster: Cluster, namespaces: Sequence[str], on_event: OnEvent) -> None:
    """Tell of every job, of those that live as soon as their page is there, and of the others at the end.

    A page takes as long as kopf takes over a few jobs, of which it makes a task each.  Raises ClusterError.
    """
    ended: list[News] = []
    for namespace in namespaces or (None,):
        async for page in pages(cluster, RLJOB, namespace):
            for news in map(news_of, page.items):
                if news.has_ended:
                    ended.append(news)
                else:
                    on_event(news)
    for news in ended:
        on_event(news)
