"""Bodies and pod statuses that nobody in good faith would send, drawn from a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from rljob_operator.tests.world import ended, running

TEXTS = (
    *("", "a", "\x00", "\x1b[31m", "\ud83d", "\ude00\ud83d", "x" * 5000, "é" * 3000, "\U0001f600" * 2000, "\n" * 300),
    *("[" * 4000, '{"cause":' * 400, '{"cause": "\\ud83d"}', '{"cause": "\\ud83d\\ude00 \\\\ud83d", "step": 1e999}'),
    *('{"step": 1' + "0" * 25 + "}", '{"step": -1, "checkpoint": 9223372036854775808}', "9" * 5000, "NaN", "null"),
    *('{"code": 65, "cause": {"a": []}, "worker": 5}', "2027-01-15T08:00:00Z", "9999-12-31T23:59:59Z", "yesterday"),
    *("DisruptionTarget", "Ready", "Failed", "Succeeded", "OOMKilled", "ErrImagePull", "Evicted", "NodeLost", "True"),
)
NUMBERS = (0, 1, -1, 3, 64, 65, 70, 75, 76, 137, 2**31, 2**63 - 1, 2**63, -(2**63), 10**25, 10**400, 0.5, 1e308, -1e308)
ODD = (None, True, False, [], {}, [[]], [None], {"a": {}}, float("nan"), float("inf"))
FIELDS = ("phase", "attempt", "step", "totalSteps", "reward", "stepSeconds", "checkpointStep", "metrics")
BODIES = (b"", b"[" * 200_000, b'{"a":' * 50_000, b"\xff\xfe", b'"\\ud83d"', b"{" + b'"a":1,' * 9999, b"1e999", b"null")


def value(chance: Random, depth: int = 3) -> Any:
    """Anything that JSON can say, and some things that Python's JSON says besides."""
    kind = chance.randrange(5 if depth else 3)
    if kind == 0:
        return chance.choice(TEXTS)
    if kind == 1:
        return chance.choice(NUMBERS)
    if kind == 2:
        return chance.choice(ODD)
    if kind == 3:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): value(chance, depth - 1) for _ in range(chance.randrange(4))}


def body(chance: Random, attempt: int) -> bytes:
    """An answer to /progress: of the right attempt, so that it is believed, or bytes."""
    if chance.random() < 0.1:
        return chance.choice(BODIES)
    said = {name: value(chance) for name in FIELDS if chance.random() < 0.5} | {"more": value(chance)}
    if chance.random() < 0.8:
        said["attempt"] = attempt
        said["step"] = chance.choice(NUMBERS)
    return json.dumps(said).encode()


def status(chance: Random) -> dict[str, Any]:
    """A pod's status: one of a pod that runs or has ended, some of whose values, at any depth, are others."""
    code = chance.choice((0, 64, 65, 70, 75, 137))
    result = running() if chance.random() < 0.3 else ended(code, chance.choice(TEXTS), chance.choice(TEXTS))
    last = {"terminated": {"exitCode": code, "message": chance.choice(TEXTS), "finishedAt": chance.choice(TEXTS)}}
    result["initContainerStatuses"][0] |= {"lastState": last, "restartCount": chance.choice((0, 0, 0, 2))}
    result |= {"reason": chance.choice(TEXTS), "message": chance.choice(TEXTS)} if chance.random() < 0.3 else {}
    return {name: _bent(chance, item) for name, item in result.items()}


def _bent(chance: Random, result: Any) -> Any:
    if chance.random() < 0.04:
        return value(chance)
    if isinstance(result, dict):
        return {name: _bent(chance, item) for name, item in result.items()}
    return [_bent(chance, item) for item in result] if isinstance(result, list) else result
