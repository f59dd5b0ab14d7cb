"""Log lines as text and as JSON."""

import json
import logging
import sys

from rljob_operator.reporting.logs import JsonFormatter, TextFormatter, log_context
from rljob_operator.vocabulary.key import Key


def record(message: str, exc_info: object = None) -> logging.LogRecord:
    made = logging.LogRecord("rljob_operator.x", logging.WARNING, "x.py", 1, message, ("b",), exc_info)  # type: ignore[arg-type]
    made.created, made.msecs = 1_800_000_000.25, 250.0  # 2027-01-15T08:00:00.25Z
    return made


def test_text() -> None:
    with log_context(Key("team-a", "job")):
        line = TextFormatter().format(record("a %s"))
    assert line == "2027-01-15T08:00:00.250Z WARNING team-a/job: a b"
    assert TextFormatter().format(record("a %s")) == "2027-01-15T08:00:00.250Z WARNING a b"


def test_json() -> None:
    with log_context(Key("team-a", "job")):
        line = JsonFormatter().format(record("a %s"))
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "rljob_operator.x",
        "namespace": "team-a",
        "rljob": "job",
        "message": "a b",
    }


def test_a_traceback_stays_one_json_record() -> None:
    try:
        raise KeyError("spec")
    except KeyError:
        line = JsonFormatter().format(record("failed %s", sys.exc_info()))
    assert "\n" not in line
    assert json.loads(line)["message"].endswith("KeyError: 'spec'")
