"""What was sampled and answered in conversations, so that a step that is repeated is played again from it.

A trajectory's record has its samples by turn, and its calls by turn and by what was called, with the answers that came:

    {"trajectory": 12, "attempt": 0, "turn": 0, "sample": {"prompt": "9f…", "tokens": "AAA…", …}}
    {"trajectory": 12, "attempt": 0, "turn": 1, "call": "3c….0"}
    {"trajectory": 12, "attempt": 0, "turn": 1, "call": "3c….0", "answer": {"value": 7, "error": null, "seconds": 0.1}}

Pictures in answers are data URLs. A journal has each of them once, and its digest in the answers:

    {"picture": "5f…", "url": "data:image/png;base64,…"}

Calls are known by their target, arguments and number among equal ones, and not by their order: the same run makes the
same calls, and those that it makes at once may come in any order.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

import numpy as np

from rljob_worker.conversations.trajectory import DIGEST_BYTES, Sampled

_URL, _BY_DIGEST = "data:image/", "rljob-picture:"
"""How pictures begin in answers, and in those of a journal."""


class RecordedError(TypedDict):
    """Why a call had no value."""

    cause: str
    message: str


class RecordedAnswer(TypedDict):
    """What a call came to, as JSON."""

    value: Any
    error: RecordedError | None
    seconds: float


class Entries(Protocol):
    """Where a journal is written."""

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; once this returns it outlives the process."""
        ...

    def append_picture(self, digest: str, url: str) -> None:
        """Write a picture, unless it was written before."""
        ...


class DoesNotReplay(BaseException):
    """The run did something else than is recorded. No `except Exception` of a run function keeps it."""


@dataclass(slots=True)
class Record:
    """What a journal has of one trajectory."""

    samples: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By turn."""
    calls: dict[tuple[int, str], RecordedAnswer | None] = field(default_factory=dict)
    """By turn and call; None without an answer."""
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Data URLs of pictures in answers, by digest."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """One entry of the trajectory, of this attempt of the job or an earlier one; the first of its kind stands."""
        turn = entry["turn"]
        if "sample" in entry:
            self.samples.setdefault(turn, entry["sample"])
        elif self.calls.get((turn, entry["call"])) is None:
            self.calls[turn, entry["call"]] = entry.get("answer")


class Journal:
    """One trajectory's: what is recorded comes back, what is new is written."""

    def __init__(self, trajectory: int, attempt: int, record: Record | None, entries: Entries | None) -> None:
        """record: of an earlier attempt at the step. entries: None where nothing is kept."""
        self._key = {"trajectory": trajectory, "attempt": attempt}
        self._samples = {} if record is None else dict(record.samples)
        self._calls = {} if record is None else dict(record.calls)
        self._pictures = {} if record is None else record.pictures
        self._num_equal: dict[tuple[int, str], int] = {}
        self._entries = entries
        self.has_replayed = False

    def sampled(self, turn: int, digest: Callable[[], str], version: int) -> Sampled | None:
        """The recorded sample of a turn; None where there is none. digest: of the tokens and pictures before it. Raises
        DoesNotReplay for a turn that follows other tokens than are recorded, or that other weights than the present
        ones answered."""
        if not self._samples:
            return None
        before = digest()
        # turns of several branches may come in another order
        same = [number for number, sample in sorted(self._samples.items()) if sample["prompt"] == before]
        if not same and turn in self._samples:
            raise DoesNotReplay(f"turn {turn} continues other tokens than are recorded")
        if not same:
            raise DoesNotReplay(f"turn {turn} is not recorded, and later ones are")
        result = decoded(self._samples.pop(turn if turn in same else same[0]))
        if (result.versions != version).any():
            raise DoesNotReplay(f"turn {turn} was recorded with other weights than version {version}")
        self.has_replayed = True
        return result

    def write_sample(self, turn: int, digest: Callable[[], str], sampled: Sampled) -> None:
        """A turn that was sampled now. digest: of the tokens and pictures before it."""
        if self._entries is not None:
            self._write(turn, {"sample": encoded(sampled, digest())})

    def begin_call(self, turn: int, what: str) -> tuple[str, RecordedAnswer | None]:
        """The key of a call within its turn, and its recorded answer; None where the call has to be made.

        what: target and arguments. Raises DoesNotReplay for a call that is not recorded where later turns are.
        """
        digest = digest_of(what.encode())
        number = self._num_equal.get((turn, digest), 0)
        self._num_equal[turn, digest] = number + 1
        call = f"{digest}.{number}"
        if (turn, call) in self._calls:
            answer = self._calls.pop((turn, call))
            if answer is not None:
                self.has_replayed = True
                answer["value"] = with_urls(answer["value"], self._pictures)
            return call, answer
        if self._samples:
            raise DoesNotReplay(
                f"a call in turn {turn} is not recorded, and what was sampled after it is: {what[:200]}"
            )
        self._write(turn, {"call": call})
        return call, None

    def write_answer(self, turn: int, call: str, answer: RecordedAnswer) -> None:
        """What a call came to that was made now."""
        pictures = dict[str, str]()
        value = with_digests(answer["value"], pictures)
        if self._entries is not None:
            for digest, url in pictures.items():
                self._entries.append_picture(digest, url)
        self._write(turn, {"call": call, "answer": {**answer, "value": value}})

    def require_replayed(self) -> None:
        """At the end of the run. Raises DoesNotReplay where something is recorded that it did not do."""
        answered = [turn for (turn, _), answer in self._calls.items() if answer is not None]
        if self._samples or answered:
            raise DoesNotReplay(f"what is recorded of turn {min([*self._samples, *answered])} did not happen again")

    def _write(self, turn: int, entry: Mapping[str, Any]) -> None:
        if self._entries is not None:
            self._entries.append({**self._key, "turn": turn, **entry})


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


def with_digests(value: Any, pictures: dict[str, str]) -> Any:
    """A value of JSON with the digests of its pictures in place of their data URLs, which go into `pictures`."""
    if isinstance(value, str) and value.startswith(_URL):
        digest = digest_of(value.encode())
        pictures[digest] = value
        return _BY_DIGEST + digest
    if isinstance(value, Mapping):
        return {key: with_digests(item, pictures) for key, item in value.items()}
    return [with_digests(item, pictures) for item in value] if isinstance(value, list | tuple) else value


def with_urls(value: Any, pictures: Mapping[str, str]) -> Any:
    """What `with_digests` was given. Raises DoesNotReplay for a picture that is not recorded."""
    if isinstance(value, str) and value.startswith(_BY_DIGEST):
        digest = value.removeprefix(_BY_DIGEST)
        if digest not in pictures:
            raise DoesNotReplay(f"the picture {digest} of an answer is not recorded")
        return pictures[digest]
    if isinstance(value, Mapping):
        return {key: with_urls(item, pictures) for key, item in value.items()}
    return [with_urls(item, pictures) for item in value] if isinstance(value, list) else value


def encoded(sampled: Sampled, prompt: str) -> dict[str, Any]:
    """A sample as JSON. prompt: digest of what is before it."""
    return {
        "prompt": prompt,
        "tokens": _text(sampled.tokens.astype("<i4")),
        "logProbs": _text(sampled.log_probs.astype("<f4")),
        "versions": _text(sampled.versions.astype("<i8")),
        "ending": int(sampled.ending),
    }


def decoded(sample: Mapping[str, Any]) -> Sampled:
    """What `encoded` wrote."""
    return Sampled(
        _array(sample["tokens"], "<i4").astype(np.int64),
        _array(sample["logProbs"], "<f4").astype(np.float32),
        _array(sample["versions"], "<i8").astype(np.int64),
        sample["ending"],
    )


def digest_of(data: bytes) -> str:
    """A digest that tells what is recorded from all else, in 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)
