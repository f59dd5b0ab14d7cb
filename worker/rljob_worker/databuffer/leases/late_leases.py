"""Leases that are waited for, in words."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_worker.databuffer.leases.guest_ledger import GuestLedger
from rljob_worker.databuffer.routes.guest_route import LeaseId
from rljob_worker.databuffer.routes.hosts import Host

SHOWN = 8


def missing_words(ledger: GuestLedger, leases: Sequence[LeaseId], guests: Sequence[Host], now: float) -> str:
    """Which of the leases of a worker are not here, who has them, and who could take them. guests: those that ask this
    host. now: seconds of the ledger's clock."""
    missing = [lease for lease in leases if not ledger.is_done(lease) and not ledger.is_over(lease)]
    words = [holders_words(ledger, lease, now) for lease in missing[:SHOWN]]
    late = "; ".join(words) or "none here, but leases of other hosts"
    there = ", ".join(map(str, guests[:SHOWN])) or "none"
    num_here = len(leases) - len(missing)
    return f"{num_here} of {len(leases)} leases are here. Missing: {late}. Generators that ask this host: {there}"


def holders_words(ledger: GuestLedger, lease: LeaseId, now: float) -> str:
    """Who has had a lease for how long."""
    holders = ledger.holders(lease)
    said = ", ".join(f"host {one} has it for {now - since:.0f} s" for one, since in holders.items())
    return f"{lease}: {said or 'nobody has it'}"
