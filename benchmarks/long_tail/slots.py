"""An accelerator in virtual time: slots in each of which one row is decoded, and rows that wait for a free one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

STEP_COST = 1.0
"""a: what a decode step costs whatever it decodes."""
NUM_SLOTS = 64
ROW_COST = STEP_COST / 4 / NUM_SLOTS
"""b: what each row of a decode step adds; a full step costs a quarter more than an empty one."""


@dataclass(slots=True)
class Slots:
    """What was decoded so far, and what it cost."""

    num_slots: int = NUM_SLOTS
    prefill_cost: float = 0.0
    """Of one token that a row brings when it gets its slot, prompt included; decoding waits for it."""
    time: float = 0.0
    """Units of virtual time."""
    busy: float = 0.0
    """Slots x time in which slots had a row."""
    tokens: int = 0
    """Decoded."""

    def decode(self, new_tokens: Int64, held_tokens: Int64) -> Iterator[Int64]:
        """Decode rows, in their order as slots become free; which of them end, whenever some do. Whoever stops asking
        leaves the others where they are.

        new_tokens: [rows], at least 1. held_tokens: [rows], that a row brings.
        """
        running, left = np.empty(0, np.int64), new_tokens.copy()
        num_admitted = 0
        while len(running) or num_admitted < len(left):
            last = min(len(left), num_admitted + self.num_slots - len(running))
            admitted = np.arange(num_admitted, last)
            running, num_admitted = np.concatenate([running, admitted]), last
            steps = int(left[running].min())
            duration = steps * (STEP_COST + ROW_COST * len(running))
            duration += self.prefill_cost * float(held_tokens[admitted].sum())
            self.time += duration
            self.busy += duration * len(running)
            self.tokens += steps * len(running)
            left[running] -= steps
            yield running[left[running] == 0]
            running = running[left[running] > 0]

    @property
    def idle_share(self) -> float:
        """Slots x time without a row, of all slots x time."""
        return 1 - self.busy / (self.time * self.num_slots)

    def since(self, before: Slots) -> Slots:
        """What came after."""
        parts = (self.time - before.time, self.busy - before.busy, self.tokens - before.tokens)
        return Slots(self.num_slots, self.prefill_cost, *parts)
