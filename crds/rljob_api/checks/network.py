"""Can confined code connect to what a job lists?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.checks.subject import problem
from rljob_api.vocabulary.network import network_place
from rljob_api.vocabulary.problem import Problem


def network_problems(path: str, network: Sequence[str]) -> Iterator[Problem]:
    """Entries of the field at `path` that are no place, or one that is never allowed."""
    for i, entry in enumerate(network):
        try:
            network_place(entry)
        except ValueError as error:
            yield problem(f"{path}[{i}]", entry, f"this {error}", "Write the host:port of a server, or leave it out.")
