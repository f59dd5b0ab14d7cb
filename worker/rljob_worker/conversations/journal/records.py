"""What a journal has of trajectories: turns as far as they were sampled, calls with their answers, pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np

from rljob_worker.conversations.trajectory import Sampled
from rljob_worker.engines.rollout.requests import TopLogProbs
from rljob_worker.sandbox.targets import Answer, CallError, Cause

TurnState = Literal["whole", "paused", "cut"]
"""What became of a turn: it ended by itself, has had its tokens of a round, or had to end with its trajectory."""


PicturePlace = tuple[list[str | int], str]
"""Keys and numbers that lead to a picture in a value, and the picture's digest."""


class RecordedError(TypedDict):
    """Why a call had no value."""

    cause: str
    message: str


class RecordedAnswer(TypedDict):
    """What a call came to, as JSON."""

    value: Any
    error: RecordedError | None
    seconds: float
    pictures: NotRequired[list[PicturePlace]]
    """Where the value has pictures, which are null there; only answers in a journal say it."""


@dataclass(slots=True)
class Record:
    """What a journal has of one trajectory."""

    samples: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By turn."""
    calls: dict[tuple[int, str], RecordedAnswer | None] = field(default_factory=dict)
    """By turn and call; None without an answer."""
    pictures: dict[str, str] = field(default_factory=dict)
    """Data URLs of pictures in answers, by digest."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """One entry of the trajectory, of this attempt of the job or an earlier one; the first of its kind stands,
        unless it is a paused turn that went on."""
        turn = entry["turn"]
        if "sample" in entry:
            self.add_sample(turn, entry["sample"])
        elif self.calls.get((turn, entry["call"])) is None:
            self.calls[turn, entry["call"]] = entry.get("answer")

    def add_sample(self, turn: int, sample: dict[str, Any]) -> None:
        """A turn as far as it was sampled."""
        known = self.samples.get(turn)
        if known is None or "paused" in known and len(sample["tokens"]) >= len(known["tokens"]):
            self.samples[turn] = sample

    def add_record(self, later: Record) -> None:
        """What was recorded behind it, without pictures."""
        for turn, sample in later.samples.items():
            self.add_sample(turn, sample)
        self.calls |= {call: answer for call, answer in later.calls.items() if self.calls.get(call) is None}

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint has it."""
        calls = [[turn, call, answer] for (turn, call), answer in self.calls.items()]
        return {"samples": list(self.samples.items()), "calls": calls, "pictures": self.pictures}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Record:
        """What `to_json` gave."""
        calls = {(turn, call): answer for turn, call, answer in value["calls"]}
        return Record(dict(value["samples"]), calls, dict(value["pictures"]))


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTurn:
    """A turn as far as it was sampled before."""

    sampled: Sampled
    num_carried: int
    """Tokens of earlier steps, from its first."""
    is_paused: bool = False
    """Whether it goes on behind these tokens."""
    is_cut: bool = False
    """Whether it ends behind them since the trajectory may not go on in a later step."""


def num_tokens_of(record: Record) -> dict[int, int]:
    """How many tokens each turn has that is recorded."""
    return {turn: len(decoded(sample)) for turn, sample in record.samples.items()}


def records_of(lines: Iterable[bytes], trajectories: frozenset[int] | None = None) -> dict[tuple[int, int], Record]:
    """By trajectory and attempt, what files of a journal have; a torn line is passed over. trajectories: those that are
    asked for; None: all."""
    records: dict[tuple[int, int], Record] = {}
    pictures = dict[str, str]()
    for entry in _entries(lines):
        if "picture" in entry:
            pictures[entry["picture"]] = entry["url"]
        elif trajectories is None or entry["trajectory"] in trajectories:
            key = (entry["trajectory"], entry["attempt"])
            records.setdefault(key, Record(pictures=pictures)).add(entry)
    return records


def _entries(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and ("trajectory" in entry or "picture" in entry):
            yield entry


def encoded(sampled: Sampled, prompt: str) -> dict[str, Any]:
    """A sample as JSON. prompt: digest of what is before it."""
    top = sampled.top_log_probs
    return {
        "prompt": prompt,
        "tokens": _text(sampled.tokens.astype("<i4")),
        "logProbs": _text(sampled.log_probs.astype("<f4")),
        "versions": _text(sampled.versions.astype("<i8")),
        "ending": int(sampled.ending),
        **({} if top is None else {"top": _encoded_top(top)}),
    }


def decoded(sample: Mapping[str, Any]) -> Sampled:
    """What `encoded` wrote."""
    return Sampled(
        _array(sample["tokens"], "<i4").astype(np.int64),
        _array(sample["logProbs"], "<f4").astype(np.float32),
        _array(sample["versions"], "<i8").astype(np.int64),
        sample["ending"],
        _decoded_top(sample["top"]) if "top" in sample else None,
    )


def num_top_of(sample: Mapping[str, Any]) -> int:
    """How many likely tokens a sample has beside each of its own."""
    return int(sample["top"]["number"]) if "top" in sample else 0


def _encoded_top(top: TopLogProbs) -> dict[str, Any]:
    tokens, log_probs = _text(top.tokens.astype("<i4")), _text(top.log_probs.astype("<f4"))
    return {"number": top.tokens.shape[1], "tokens": tokens, "logProbs": log_probs}


def _decoded_top(top: Mapping[str, Any]) -> TopLogProbs:
    shape = (-1, top["number"])
    tokens, log_probs = _array(top["tokens"], "<i4"), _array(top["logProbs"], "<f4")
    return TopLogProbs(tokens.astype(np.int32).reshape(shape), log_probs.astype(np.float32).reshape(shape))


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def recorded_of(answer: Answer) -> RecordedAnswer:
    """An answer as a journal has it."""
    error = answer.error
    return {
        "value": answer.value,
        "error": None if error is None else {"cause": str(error.cause), "message": error.message},
        "seconds": answer.seconds,
    }


def replayed(recorded: RecordedAnswer) -> Answer:
    """A recorded answer as a caller gave it."""
    error = recorded["error"]
    fault = None if error is None else CallError(cast(Cause, error["cause"]), error["message"])
    return Answer(recorded["value"], fault, recorded["seconds"])


def is_alike(one: RecordedAnswer, other: RecordedAnswer) -> bool:
    """Whether two answers differ in their times and words only."""
    causes = [None if item["error"] is None else item["error"]["cause"] for item in (one, other)]
    values = [json.dumps(item["value"], sort_keys=True) for item in (one, other)]
    return causes[0] == causes[1] and values[0] == values[1]
