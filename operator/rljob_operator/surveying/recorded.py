"""The status that was last written, also where somebody edited it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api.v1alpha1.status import RLJobStatus


def read_status(written: Mapping[str, Any] | None) -> RLJobStatus:
    """The status; fields that are none of ours, or hold what cannot be, are left out and so written anew."""
    status = dict(written or {})
    while True:
        try:
            return RLJobStatus.model_validate(status)
        except ValidationError as error:
            bad = {str(each["loc"][0]) for each in error.errors()}
            status = {name: value for name, value in status.items() if name not in bad}
