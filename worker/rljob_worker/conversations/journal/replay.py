"""What was sampled and answered in conversations, so that a step that is repeated is played again from it.

A trajectory's record has its samples by turn, and its calls by turn and by what was called, with the answers that came:

    {"trajectory": 12, "attempt": 0, "turn": 0, "sample": {"prompt": "9f…", "tokens": "AAA…", …}}
    {"trajectory": 12, "attempt": 0, "turn": 1, "call": "3c….0"}
    {"trajectory": 12, "attempt": 0, "turn": 1, "call": "3c….0", "answer": {"value": 7, "error": null, "seconds": 0.1}}

Pictures in answers are data URLs. A journal has each of them once; an answer has null in their places, and beside its
value says where which of them belongs:

    {"picture": "5f…", "url": "data:image/png;base64,…"}
    {…, "answer": {"value": [{"image": null}], "pictures": [[[0, "image"], "5f…"]], …}}

Calls are known by their target, arguments and number among equal ones, and not by their order: the same run makes the
same calls, and those that it makes at once may come in any order.

With `rollout.partial` a turn that has had its tokens of a round is recorded as `paused`, and again with more tokens
once it went on; one that is not to go on in a later step is recorded as `cut`.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Protocol

from rljob_worker.conversations.journal.records import (
    PicturePlace,
    Record,
    RecordedAnswer,
    RecordedTurn,
    TurnState,
    decoded,
    encoded,
    num_tokens_of,
    num_top_of,
)
from rljob_worker.conversations.trajectory import DIGEST_BYTES, Sampled

_URL = "data:image/"
"""How pictures begin in answers."""
_MARK = "rljob-picture:"
"""How they begin in the values of journals whose answers do not say where they are."""


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


class Journal:
    """One trajectory's: what is recorded comes back, what is new is written."""

    def __init__(
        self,
        trajectory: int,
        attempt: int,
        record: Record | None,
        entries: Entries | None,
        *,
        carried: Record | None = None,
        remembers: bool = False,
    ) -> None:
        """record: of an earlier attempt at the step. entries: None where nothing is kept. carried: of earlier steps.
        remembers: whether all that happens goes into `whole`."""
        known, parts = Record(), [part for part in (carried, record) if part is not None]
        for part in parts:
            known.add_record(part)
        self._key = {"trajectory": trajectory, "attempt": attempt}
        self._samples, self._calls = known.samples, known.calls
        self._pictures = ChainMap[str, str](*(part.pictures for part in parts))
        self._num_carried = {} if carried is None else num_tokens_of(carried)
        self._num_equal: dict[tuple[int, str], int] = {}
        self._entries = entries
        self.whole: Record | None = Record() if remembers else None
        """What the trajectory came from so far, in all steps."""
        self.has_replayed = False

    def begin_step(self, record: Record | None, entries: Entries | None, turn: int, num_tokens: int) -> None:
        """Go on in another step. record: of an earlier attempt at it. turn: under way, with so many tokens so far."""
        self._entries, self._num_carried = entries, {turn: num_tokens}
        if record is not None:
            self._samples |= record.samples
            self._calls |= record.calls
            self._pictures.maps.append(record.pictures)

    def sampled(
        self, turn: int, digest: Callable[[], str], version: int, top_log_probs: int = 0
    ) -> RecordedTurn | None:
        """The recorded sample of a turn; None where there is none. digest: of the tokens and pictures before it.
        top_log_probs: that it asks for, by which equal turns are told apart. Raises DoesNotReplay for a turn that
        follows other tokens than are recorded, or that other weights than the present ones answered, unless these were
        of an earlier step."""
        if not self._samples:
            return None
        before = digest()
        # turns of several branches may come in another order
        same = {number: num_top_of(sample) for number, sample in self._samples.items() if sample["prompt"] == before}
        if not same and turn in self._samples:
            raise DoesNotReplay(f"turn {turn} continues other tokens than are recorded")
        if not same:
            raise DoesNotReplay(f"turn {turn} is not recorded, and later ones are")
        number = min(same, key=lambda item: (same[item] < top_log_probs, same[item], item != turn, item))
        sample, num_carried = self._samples.pop(number), self._num_carried.get(number, 0)
        result = decoded(sample)
        if (result.versions[num_carried:] != version).any():
            raise DoesNotReplay(f"turn {turn} was recorded with other weights than version {version}")
        self.has_replayed = True
        if self.whole is not None:
            self.whole.add_sample(turn, sample)
        return RecordedTurn(result, num_carried, sample.get("paused", False), sample.get("cut", False))

    def write_sample(self, turn: int, digest: Callable[[], str], sampled: Sampled, how: TurnState = "whole") -> None:
        """A turn as far as it was sampled now. digest: of the tokens and pictures before it."""
        if self._entries is None and self.whole is None:
            return
        sample = encoded(sampled, digest()) | ({} if how == "whole" else {how: True})
        if self._entries is not None:
            self._write(turn, {"sample": sample})
        if self.whole is not None:
            self.whole.add_sample(turn, sample)

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
            if answer is None:
                return call, None
            self.has_replayed = True
            played: RecordedAnswer = {**answer, "value": with_urls(answer, self._pictures)}
            self._remember(turn, call, *without_urls(played))
            return call, played
        if self._samples:
            raise DoesNotReplay(
                f"a call in turn {turn} is not recorded, and what was sampled after it is: {what[:200]}"
            )
        self._write(turn, {"call": call})
        return call, None

    def write_answer(self, turn: int, call: str, answer: RecordedAnswer) -> None:
        """What a call came to that was made now."""
        recorded, pictures = without_urls(answer)
        if self._entries is not None:
            for digest, url in pictures.items():
                self._entries.append_picture(digest, url)
        self._write(turn, {"call": call, "answer": recorded})
        self._remember(turn, call, recorded, pictures)

    def _remember(self, turn: int, call: str, answer: RecordedAnswer, pictures: Mapping[str, str]) -> None:
        if self.whole is not None:
            self.whole.calls[turn, call] = answer
            self.whole.pictures |= pictures

    def require_replayed(self) -> None:
        """At the end of the run. Raises DoesNotReplay where something is recorded that it did not do."""
        answered = [turn for (turn, _), answer in self._calls.items() if answer is not None]
        if self._samples or answered:
            raise DoesNotReplay(f"what is recorded of turn {min([*self._samples, *answered])} did not happen again")

    def _write(self, turn: int, entry: Mapping[str, Any]) -> None:
        if self._entries is not None:
            self._entries.append({**self._key, "turn": turn, **entry})


def without_urls(answer: RecordedAnswer) -> tuple[RecordedAnswer, dict[str, str]]:
    """An answer as a journal has it, and the data URLs of its pictures by digest."""
    urls, places = dict[str, str](), list[PicturePlace]()

    def without(value: Any, place: list[str | int]) -> Any:
        if isinstance(value, str) and value.startswith(_URL):
            digest = digest_of(value.encode())
            urls[digest] = value
            places.append((place, digest))
            return None
        if isinstance(value, Mapping):
            return {key: without(item, [*place, key]) for key, item in value.items()}
        return [without(item, [*place, at]) for at, item in enumerate(value)] if isinstance(value, list) else value

    return {**answer, "value": without(answer["value"], []), "pictures": places}, urls


def with_urls(answer: RecordedAnswer, urls: Mapping[str, str]) -> Any:
    """The value that `without_urls` was given. Raises DoesNotReplay for a picture that is not recorded."""

    def url_of(digest: str) -> str:
        if digest not in urls:
            raise DoesNotReplay(f"the picture {digest} of an answer is not recorded")
        return urls[digest]

    def marked(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(_MARK):
            return url_of(value.removeprefix(_MARK))
        if isinstance(value, Mapping):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    if "pictures" not in answer:
        return marked(answer["value"])
    result = [deepcopy(answer["value"]) if answer["pictures"] else answer["value"]]
    for place, digest in answer["pictures"]:
        part: Any = result
        key: str | int = 0
        for step in place:
            part, key = part[key], step
        part[key] = url_of(digest)
    return result[0]


def digest_of(data: bytes) -> str:
    """A digest that tells what is recorded from all else, in 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
