"""The order in which ranks call collectives: alike on all ranks of a communicator, which else wait for each other in
vain. Every call is written to a file before it begins, so that those of a rank that hangs are known, too."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
import torch.distributed as dist

EVEN = (
    "allreduce",
    "broadcast",
    "allgather",
    "all_gather_single",
    "_allgather_base",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "barrier",
)
"""Ranks call them with as many numbers as each other."""
UNEVEN = ("all_to_all_single", "alltoall_base", "alltoall", "reduce", "gather", "scatter")
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Call:
    """What a rank asked of a communicator."""

    ranks: tuple[int, ...]
    """Of the world: those of the communicator."""
    communicator: str
    """Torch's name of it: there may be several of the same ranks."""
    operation: str
    values: str
    """What of its arguments is alike on all ranks, or at both ends of a message."""
    peer: int | None = None
    """The other end of a message, as a rank of the communicator."""
    tag: int = 0

    def __str__(self) -> str:
        return f"{self.operation} {self.values}".strip()


@contextmanager
def written_calls(path: Path) -> Iterator[None]:
    """A block in which this process writes what it calls."""
    with pytest.MonkeyPatch.context() as patch, path.open("w", buffering=1) as file:
        for name in (*EVEN, *UNEVEN, *POINT_TO_POINT):
            patch.setattr(dist.ProcessGroup, name, _writing(name, getattr(dist.ProcessGroup, name), file))
        yield


def read_calls(path: Path) -> list[Call]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Call(tuple(ranks), *rest) for ranks, *rest in map(json.loads, lines)]


def divergence(calls: Sequence[list[Call]]) -> str:
    """The first that is found, of the calls of each rank of the world; empty where there is none."""
    for search in (_within_communicators, _between_communicators, _messages):
        for found in search(calls):
            return found
    return ""


def _writing(name: str, method: Callable[..., Any], file: TextIO) -> Callable[..., Any]:
    def call(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
        made = _call(name, group, [*arguments, *options.values()])
        file.write(json.dumps(astuple(made)) + "\n")
        return method(group, *arguments, **options)

    return call


def _call(name: str, group: dist.ProcessGroup, arguments: list[Any]) -> Call:
    ranks = tuple(dist.get_process_group_ranks(group))
    tensors = [item for value in arguments for item in (value if isinstance(value, (list, tuple)) else [value])]
    values = [_shape(item, name) for item in tensors if isinstance(item, torch.Tensor)]
    if name in POINT_TO_POINT:
        _, peer, tag = arguments
        return Call(ranks, group.group_name, name, " ".join(values), peer, tag)
    values = list(dict.fromkeys(values)) if name in UNEVEN else values
    return Call(ranks, group.group_name, name, " ".join([*values, *_chosen(arguments)]))


def _shape(tensor: torch.Tensor, name: str) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype if name in UNEVEN else f"{dtype}[{tensor.numel()}]"


def _chosen(arguments: list[Any]) -> Iterator[str]:
    """Where a collective begins or ends, and how it adds up."""
    for options in arguments:
        if hasattr(options, "rootRank"):
            yield f"root {options.rootRank}"
        if hasattr(options, "reduceOp"):
            yield options.reduceOp.op.name


def _within_communicators(calls: Sequence[list[Call]]) -> Iterator[str]:
    """A rank whose n-th call is another than that of most."""
    own = [_by_communicator(calls_of_rank) for calls_of_rank in calls]
    for communicator in dict.fromkeys(key for of_rank in own for key in of_rank):
        ranks, name = communicator
        for number, made in enumerate(zip_longest(*(own[rank].get(communicator, []) for rank in ranks)), 1):
            usual, _ = Counter(made).most_common(1)[0]
            for rank, call in zip(ranks, made, strict=True):
                if call != usual:
                    other = ranks[made.index(usual)]
                    yield (
                        f"rank {rank}, communicator {name} of ranks {', '.join(map(str, ranks))}, call {number}: "
                        f"{call or 'nothing'}, where rank {other} has {usual or 'nothing'}"
                    )


def _between_communicators(calls: Sequence[list[Call]]) -> Iterator[str]:
    """Two ranks that are in the same communicators call them in one order: devices run them one after the other."""
    for left, right in combinations(range(len(calls)), 2):
        shared = [[call for call in calls[rank] if _is_of(call, left, right)] for rank in (left, right)]
        for ours, theirs in zip(*shared, strict=True):
            if ours != theirs:
                number = _by_communicator(calls[right])[theirs.ranks, theirs.communicator].index(theirs) + 1
                yield (
                    f"rank {right}, communicator {theirs.communicator}, call {number}: {theirs}, where rank {left} "
                    f"calls communicator {ours.communicator}: {ours}"
                )


def _messages(calls: Sequence[list[Call]]) -> Iterator[str]:
    """What a rank sends to another is received there in that order."""
    ends: dict[tuple[Any, ...], dict[str, list[str]]] = defaultdict(lambda: {"send": [], "recv": []})
    for rank, calls_of_rank in enumerate(calls):
        for call in calls_of_rank:
            if call.peer is not None:
                peer = call.ranks[call.peer]
                pair = (rank, peer) if call.operation == "send" else (peer, rank)
                ends[call.communicator, *pair, call.tag][call.operation].append(call.values)
    for (name, source, target, tag), end in ends.items():
        for number, (sent, received) in enumerate(zip_longest(end["send"], end["recv"]), 1):
            if sent != received:
                yield (
                    f"rank {target}, communicator {name}, message {number} of rank {source}, tag {tag}: receives "
                    f"{received or 'nothing'}, where rank {source} sends {sent or 'nothing'}"
                )


def _by_communicator(calls: list[Call]) -> dict[tuple[tuple[int, ...], str], list[Call]]:
    result: dict[tuple[tuple[int, ...], str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.peer is None:
            result[call.ranks, call.communicator].append(call)
    return result


def _is_of(call: Call, left: int, right: int) -> bool:
    return call.peer is None and left in call.ranks and right in call.ranks
