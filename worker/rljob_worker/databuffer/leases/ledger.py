"""What one owner leases, and what became of a round: pure book-keeping, nothing central.

5 leases, 2 owners     owner 0 has leases 0 2 4, owner 1 has 1 3; each hands its own out in ascending order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_worker.databuffer.protocol.errors import require


@dataclass(slots=True)
class _Round:
    num_leases: int
    next_lease: int
    """The owner's first that it has not handed out."""


class Ledger:
    """The leases of one stage that one of `num_owners` owners hands out.

    Nobody has to open a round: all generators work out alike how many leases it has, from what became of the rounds
    before, and say so when they ask. staleness: steps that generating weights may be behind.
    """

    def __init__(self, owner: int, num_owners: int, staleness: int) -> None:
        assert 0 <= owner < num_owners, f"there are {num_owners} owners"
        self._owner, self._num_owners = owner, num_owners
        self._lag = staleness + 2
        self._rounds: dict[tuple[int, int], _Round] = {}
        self._first: int | None = None
        """The first step that anybody asked for: what came before it is of an earlier attempt, and done."""
        self._acknowledged = -1
        self._forgotten = -1

    def is_open(self, step: int) -> bool:
        """Whether leases of a step may be taken: not before batch `step` - staleness - 2 was acknowledged."""
        # a validation is asked for under the step that it precedes, perhaps some steps ahead
        self._first = step if self._first is None else min(self._first, step)
        return step - self._lag < max(self._first, self._acknowledged + 1)

    def acknowledge(self, step: int) -> None:
        """The batch of a step, and so of those before it, was trained on."""
        self._acknowledged = max(self._acknowledged, step)

    def grant(self, step: int, number: int, num_leases: int) -> int | None:
        """The owner's next lease of a round of a step, None when it has none left.

        Raises Malformed for another number of leases than was said before, and for a step that is long over.
        """
        if (step, number) not in self._rounds:
            require(step > self._forgotten, f"step {step} is over: no lease of it is asked for any more")
            self._rounds[step, number] = _Round(num_leases, self._owner)
            self._forget(step - self._lag - 1)
        rounds = self._rounds[step, number]
        words = f"round {number} of step {step} has {rounds.num_leases} leases, and not {num_leases}"
        require(rounds.num_leases == num_leases, words)
        if rounds.next_lease >= num_leases:
            return None
        lease, rounds.next_lease = rounds.next_lease, rounds.next_lease + self._num_owners
        return lease

    def _forget(self, last: int) -> None:
        self._forgotten = max(self._forgotten, last)
        self._rounds = {key: item for key, item in self._rounds.items() if key[0] > self._forgotten}


def merge_outcomes(payloads: Sequence[bytes]) -> bytes:
    """What became of the draw numbers of a round, a byte each, 0 where a generator did not draw it: those of several
    generators together. Raises Malformed where they are not of one round, or two have drawn the same number."""
    num_bytes = {len(payload) for payload in payloads}
    require(len(num_bytes) == 1, f"outcomes of one round have {sorted(num_bytes)} bytes")
    said = np.stack([np.frombuffer(payload, np.uint8) for payload in payloads])
    twice = np.flatnonzero((said != 0).sum(axis=0) > 1)
    require(not len(twice), f"entries {twice[:8].tolist()} of a round were drawn twice")
    return bytes(said.max(axis=0))
