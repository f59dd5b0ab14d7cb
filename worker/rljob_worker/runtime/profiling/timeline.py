"""Where a step's time goes, over workers: a Chrome trace with one lane per worker.

Every worker that has a lane leaves its blocks of the step next to the others' before it reports the step, and the lead,
once all have reported, makes one file of them:

    profile/step-5/: train-0.blocks.json  train-1.blocks.json  rollout-0.blocks.json   ->   timeline.json.gz
"""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_worker.runtime.figures import StepFigures

log = logging.getLogger(__name__)

TIMELINE = "timeline.json.gz"
_SUFFIX = ".blocks.json"


@dataclass(frozen=True, slots=True)
class Block:
    """Something with a beginning and an end, both in seconds since 1970."""

    name: str
    start: float
    end: float
    facts: dict[str, float]


@dataclass
class TimelineTrack:
    """What one worker did."""

    group: str
    rank: int
    blocks: list[Block] = field(default_factory=list)


class BlockRecorder:
    """The instrument of one worker: notes the blocks of its figures."""

    def __init__(self, figures: StepFigures, group: str, rank: int) -> None:
        self._figures, self._track, self._offset = figures, TimelineTrack(group, rank), 0.0

    def start(self) -> None:
        # hosts share no clock but that of the day; each host's lanes are off by as much as its clock is
        self._offset = time.time() - self._figures.now()
        self._figures.watcher = self._note

    def write(self, stem: Path) -> None:
        self._figures.watcher = None
        stem.with_name(stem.name + _SUFFIX).write_text(json.dumps(asdict(self._track)))

    def _note(self, name: str, started: float, ended: float, facts: Mapping[str, float]) -> None:
        self._track.blocks.append(Block(name, started + self._offset, ended + self._offset, dict(facts)))


def assemble(folder: Path) -> None:
    """Make the timeline of a step out of what its workers left in `folder`. What fails is warned about."""
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
        trace = {"traceEvents": events_of([_read(path) for path in paths])}
        with gzip.open(folder / TIMELINE, "wt") as file:
            json.dump(trace, file)
        for path in paths:
            path.unlink()
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("no timeline in %s: %s: %s", folder, type(error).__name__, error)


def events_of(tracks: Iterable[TimelineTrack]) -> list[dict[str, Any]]:
    """Events of the Trace Event Format: groups are its processes, workers its threads; microseconds since the first."""
    tracks = sorted(tracks, key=lambda track: (track.group, track.rank))
    groups = list(dict.fromkeys(track.group for track in tracks))
    first = min((block.start for track in tracks for block in track.blocks), default=0.0)
    events = [_named("process_name", group, pid) for pid, group in enumerate(groups)]
    for track in tracks:
        pid = groups.index(track.group)
        events.append(_named("thread_name", f"{track.group}/{track.rank}", pid, track.rank))
        # an outer block before the inner ones that begin with it
        for block in sorted(track.blocks, key=lambda block: (block.start, -block.end)):
            times = {"ts": (block.start - first) * 1e6, "dur": (block.end - block.start) * 1e6}
            event = {"ph": "X", "name": block.name, "pid": pid, "tid": track.rank, **times, "args": block.facts}
            events.append(event)
    return events


def _named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _read(path: Path) -> TimelineTrack:
    record = json.loads(path.read_text())
    return TimelineTrack(record["group"], record["rank"], [Block(**block) for block in record["blocks"]])
