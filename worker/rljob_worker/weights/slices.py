"""Slices on their way: a tensor goes as the parts in which the ranks of a copy that generates keep it.

A part that not all of them keep goes under the name of the tensor, its ranks and the length of the axis that is cut:
`w@2-3of96` is what ranks 2 and 3 keep of a `w` of 96 rows, or columns. What all keep goes under its own name. Changes
of a part (`delta`) are written behind that: `w@2-3of96:7:places`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.planning.plan import Plan
from rljob_worker.engines.rollout.slices import Named, cut
from rljob_worker.errors import BadData

_SENT = re.compile(r"@(\d+)-(\d+)of(\d+)")


def slices_of(plan: Plan) -> dict[str, WeightSlices]:
    """How ranks that generate share each model that is sent to them or copied. Where one has all of it, too: versions
    of an attempt with more ranks are in their parts."""
    from rljob_api.memory.model_shape import parse_shape
    from rljob_worker.engines.models import model_config

    result = {}
    for edge in plan.weights:
        engine = plan.engine(edge.target)
        shape = parse_shape(model_config(engine.path).to_dict())
        result[edge.model] = WeightSlices.of(shape, engine.mesh.tp)
    return result


def sent_parts(bucket: Iterable[Named], slices: WeightSlices) -> Iterator[Named]:
    """The parts of whole tensors under the names that they go by; each is only good until the next is asked for."""
    for name, tensor in bucket:
        for part in slices.parts(name, tensor.shape):
            if part.spans is None:
                yield name, tensor
            else:
                yield f"{name}@{part.first}-{part.last}of{tensor.shape[part.axis]}", cut(tensor, part)


def ranks_of(name: str, num_ranks: int) -> range:
    """Ranks of a copy that keep what goes by a name."""
    match = _SENT.search(name)
    return range(num_ranks) if match is None else range(int(match[1]), int(match[2]) + 1)


def kept_by(rank: int) -> Callable[[str], bool]:
    """Whether a rank of a copy keeps what goes by a name."""
    return lambda name: rank in ranks_of(name, rank + 1)


def tensor_name(name: str) -> str:
    """Name of the tensor of which a part goes by `name`."""
    return name.partition("@")[0]


def whole_tensors(parts: Iterable[Named], slices: WeightSlices) -> Iterator[Named]:
    """Tensors put together of all that was sent of them: parts of one lie behind each other. They may be those of
    another number of ranks than that of `slices`.

    Raises BadData naming a tensor that is not whole."""
    for name, group in groupby(parts, key=lambda part: tensor_name(part[0])):
        first_name, first = next(group)
        match = _SENT.search(first_name)
        if match is None:
            yield name, first
        else:
            others = ((other, tensor.clone()) for other, tensor in group)
            yield name, _joined(name, int(match[3]), [(first_name, first.clone()), *others], slices)


def _joined(name: str, length: int, sent: Sequence[Named], slices: WeightSlices) -> torch.Tensor:
    """A tensor whose axis that is cut has some length."""
    first, num_ranks = sent[0][1], max(ranks_of(part, 0).stop for part, _ in sent)
    # of the shape only the length of the axis that is cut counts
    parts = replace(slices, tensor=num_ranks).parts(name, [length] * first.dim())
    if len(parts) != len(sent):
        raise BadData(
            f"of the weights {name}, which an earlier attempt sent to {num_ranks} ranks, {len(sent)} of {len(parts)} "
            "parts are there; set checkpoint.versions: Redraw, which goes on without earlier weights"
        )
    shape = list(first.shape)
    shape[parts[0].axis] = length
    whole = first.new_empty(shape)
    for part, (_, tensor) in zip(parts, sent, strict=True):
        start = 0
        for begin, stop in part.spans or ():
            whole.narrow(part.axis, begin, stop - begin).copy_(tensor.narrow(part.axis, start, stop - begin))
            start += stop - begin
    return whole
