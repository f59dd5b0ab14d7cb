"""The status that was last written, also where somebody edited it or another version wrote it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api.v1alpha1.status import RLJobStatus

_LONG_AGO = "1970-01-01T00:00:00Z"


def read_status(written: Mapping[str, Any] | None) -> RLJobStatus:
    """The status; fields that are none of ours, or hold what cannot be, are left out and so written anew."""
    status = dict(written or {})
    while True:
        try:
            return RLJobStatus.model_validate(status)
        except ValidationError as error:
            for each in error.errors():
                _mend(status, each["loc"])


def _mend(status: dict[str, Any], place: tuple[int | str, ...]) -> None:
    """Of conditions only what is wrong goes: that a job has ended must not be forgotten for the sake of a time."""
    field = str(place[0])
    entries = status.get(field)
    if field != "conditions" or len(place) < 2 or not isinstance(entries, list):
        status.pop(field, None)
        return
    at = int(place[1])
    entry = entries[at] if at < len(entries) else None
    is_time = place[2:] == ("lastTransitionTime",) and isinstance(entry, dict)
    mended = [{**entry, "lastTransitionTime": _LONG_AGO}] if is_time and entry is not None else []
    status[field] = [*entries[:at], *mended, *entries[at + 1 :]]
