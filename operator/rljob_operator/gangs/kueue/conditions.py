"""Conditions of objects that others own."""

from __future__ import annotations

from rljob_operator.manifests.context import Manifest

MAX_MESSAGE_LENGTH = 1024


def find(manifest: Manifest, kind: str) -> Manifest | None:
    """The condition of this type, if there is one."""
    conditions = manifest.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), None)


def is_true(manifest: Manifest, kind: str) -> bool:
    """Whether the condition is there and holds."""
    found = find(manifest, kind)
    return found is not None and found["status"] == "True"


def message_of(manifest: Manifest, kind: str) -> str:
    """What the condition says, or nothing."""
    found = find(manifest, kind)
    return "" if found is None else str(found.get("message", ""))


def condition(kind: str, holds: bool, reason: str, message: str, manifest: Manifest, now: str) -> Manifest:
    """A condition of `manifest` as of `now`."""
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message[:MAX_MESSAGE_LENGTH],
        "lastTransitionTime": now,
        "observedGeneration": manifest["metadata"].get("generation", 0),
    }


def with_condition(conditions: list[Manifest], news: Manifest) -> list[Manifest]:
    """The list with `news` in it; unchanged when it says the same, and the old time when only the message changes."""
    for index, each in enumerate(conditions):
        if each["type"] == news["type"]:
            if all(each.get(name) == news[name] for name in ("status", "reason", "message")):
                return conditions
            time = each["lastTransitionTime"] if each["status"] == news["status"] else news["lastTransitionTime"]
            return [*conditions[:index], {**news, "lastTransitionTime": time}, *conditions[index + 1 :]]
    return [*conditions, news]
