"""Log lines: plain text or JSON, each with the job it speaks of."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rljob_operator.vocabulary.key import Key

_key: ContextVar[Key | None] = ContextVar("key", default=None)


@contextmanager
def log_context(key: Key) -> Iterator[None]:
    """Within this block, and in tasks started there, log lines name `key`."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO namespace/name: message`."""

    def format(self, record: logging.LogRecord) -> str:
        key = _key.get()
        subject = f"{key}: " if key else ""
        return f"{_timestamp(record)} {record.levelname} {subject}{_with_traceback(self, record)}"


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and namespace and rljob where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": _timestamp(record), "level": record.levelname.lower(), "logger": record.name}
        key = _key.get()
        if key is not None:
            entry |= {"namespace": key.namespace, "rljob": key.name}
        return json.dumps(entry | {"message": _with_traceback(self, record)}, ensure_ascii=False)


_FORMATTERS: dict[str, type[logging.Formatter]] = {"Text": TextFormatter, "Json": JsonFormatter}

# Libraries that report each request or each event on level INFO.
_TALKATIVE = ("kopf", "aiohttp.access", "asyncio")


def setup_logs(log_format: str, log_level: str) -> None:
    """Send every record to standard error, as `Text` or `Json`; `log_level` is the least that is sent."""
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[log_format]())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    if log_level != "Debug":
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)


def _with_traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    return f"{message}\n{formatter.formatException(record.exc_info)}" if record.exc_info else message


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
