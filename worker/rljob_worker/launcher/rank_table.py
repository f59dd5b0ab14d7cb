"""The rank table of a vendor's collectives: a file that a controller fills once every pod of the gang has devices."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_worker.errors import DeadlineExceeded, InvalidJob

COMPLETED = "completed"
POLL_SECONDS = 1.0
DEFAULT_SECONDS = 600.0


def await_rank_table(
    environment: Mapping[str, str],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when the file that `RLJOB_RANK_TABLE` names says that it is complete; at once where none is named.

    Raises DeadlineExceeded after `RLJOB_RANK_TABLE_SECONDS` with what the file says by then.
    """
    named = environment.get(keys.ENV_RANK_TABLE)
    if not named:
        return
    path, timeout_seconds = Path(named), _timeout_seconds(environment)
    end = clock() + timeout_seconds
    while (status := rank_table_status(path)) != COMPLETED:
        if clock() >= end:
            raise DeadlineExceeded(
                f"the rank table {path} is {status} after {timeout_seconds:.0f} s, expected {COMPLETED}: "
                "not every pod has its devices, or the controller that writes it does not run"
            )
        sleep(POLL_SECONDS)


def rank_table_status(path: Path) -> str:
    """What the table says of itself; `missing` or `unreadable` where it says nothing."""
    try:
        table = json.loads(path.read_text())
    except OSError:
        return "missing"
    except ValueError:
        return "unreadable"
    return str(table.get("status", "without a status")) if isinstance(table, dict) else "unreadable"


def _timeout_seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(keys.ENV_RANK_TABLE_SECONDS, str(DEFAULT_SECONDS))
    try:
        return float(text)
    except ValueError as error:
        raise InvalidJob(f"{keys.ENV_RANK_TABLE_SECONDS} is {text!r}, expected a number of seconds") from error
