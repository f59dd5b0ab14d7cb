"""Why a wait ran out: names the ranks whose rows are missing, and what each of them last said it was doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rljob_worker.databuffer.hosts import Host
from rljob_worker.databuffer.peers import Peers
from rljob_worker.databuffer.pull import Late
from rljob_worker.databuffer.routing import RowsRoute
from rljob_worker.databuffer.store import Store
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

ASKED_HOSTS = 16
SHOWN_RANKS = 8
ASK_SECONDS = 5.0


class Lateness:
    """Asks the data buffers of the late hosts."""

    def __init__(
        self,
        here: Host,
        routes: dict[str, RowsRoute],
        store: Store,
        peers: Peers,
        last_words: Callable[[int], str],
    ) -> None:
        self._here = here
        self._routes = routes
        self._store = store
        self._peers = peers
        self._last_words = last_words

    def error(self, edge: str, step: int, late: Late, seconds: float) -> RLJobError:
        """What a waiter gets: DeadlineExceeded, or PeerLost when one of the late hosts does not answer either."""
        route, lines = self._routes[edge], list[str]()
        kind: type[RLJobError] = DeadlineExceeded
        for host, parts in late.missing[:ASKED_HOSTS]:
            try:
                said = self._ask(host, edge, step, parts)
            except PeerLost as error:
                said, kind = dict.fromkeys(map(str, parts), str(error)), PeerLost
            lines += [f"{route.producer(p)[0]} (host {host}): {said[str(p)]}" for p in parts if str(p) in said]
        more = f"; and {len(lines) - SHOWN_RANKS} more" if len(lines) > SHOWN_RANKS else ""
        shown = "; ".join(lines[:SHOWN_RANKS]) or "nobody, the rows are on the way: the network is slow"
        return kind(
            f"stage {route.stage} waited {seconds:.1f} s for rows of edge {edge}, step {step}. Missing: {shown}{more}"
        )

    def missing(self, edge: str, step: int, parts: Sequence[int]) -> dict[str, str]:
        """For every unsealed part of this host, what its producer last posted."""
        with self._store.changed:
            unsealed = sorted(set(parts) - self._store.step(edge, step).sealed_parts)
        return {str(part): self._last_words(self._routes[edge].producer(part)[0].rank) for part in unsealed}

    def _ask(self, host: Host, edge: str, step: int, parts: list[int]) -> dict[str, str]:
        if host == self._here:
            return self.missing(edge, step, parts)
        body = {"edge": edge, "step": step, "parts": parts}
        answer: dict[str, str] = self._peers.act(host, "missing", body, seconds=ASK_SECONDS, window_seconds=1.0)
        return answer
