"""Nodes on which workers of a job failed again and again: the next attempts keep away from them for a while. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.v1alpha1.status import SuspectNode
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.states.failures.faults import PodFault
from rljob_operator.vocabulary.timestamps import seconds_of, timestamp

FAILURES = 2
"""One may happen anywhere."""
SECONDS = 3600.0
"""How long a node is avoided after its last failure: by then somebody may have mended it."""
_MAX_NODES = 16
"""Nodes that the status holds, at most: the latest."""

_SAYS_NOTHING = frozenset(ExitCode) - {ExitCode.STORAGE}
"""Exit codes by which a worker accuses the job, its code or a peer; what ends otherwise may have a bad node."""


def may_be_the_nodes(fault: PodFault) -> bool:
    """Whether a fault may lie in the node of its pod: a killed or crashed container, or a disk, and nothing done to it
    from outside."""
    return bool(fault.container) and not fault.disruption and fault.exit_code not in _SAYS_NOTHING


def blamed(suspects: Sequence[SuspectNode], node: str, now: float) -> tuple[SuspectNode, ...]:
    """The suspects after one more failure on `node`; those that nothing was heard of for long are forgotten."""
    known = {suspect.name: suspect for suspect in suspects if not _is_forgotten(suspect, now)}
    failures = known.pop(node).failures if node in known else 0
    latest = SuspectNode(name=node, failures=failures + 1, last_time=timestamp(now))
    return (*known.values(), latest)[-_MAX_NODES:]


def avoided(suspects: Sequence[SuspectNode], now: float) -> tuple[str, ...]:
    """Names of the nodes that an attempt which begins now should not have, in the order of their last failures."""
    return tuple(
        suspect.name for suspect in suspects if suspect.failures >= FAILURES and not _is_forgotten(suspect, now)
    )


def _is_forgotten(suspect: SuspectNode, now: float) -> bool:
    return now - seconds_of(suspect.last_time) >= SECONDS
