"""Conditions of objects that others own."""

from __future__ import annotations

from rljob_operator.manifests.context import Manifest

MAX_MESSAGE_LENGTH = 1024


def find_condition(manifest: Manifest, kind: str) -> Manifest | None:
    """The condition of this type, if there is one."""
    conditions = manifest.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), None)


def holds_in(manifest: Manifest, kind: str) -> bool:
    """Whether the condition is there and holds."""
    condition = find_condition(manifest, kind)
    return condition is not None and condition["status"] == "True"


def condition_message(manifest: Manifest, kind: str) -> str:
    """What the condition says, or nothing."""
    condition = find_condition(manifest, kind)
    return "" if condition is None else str(condition.get("message", ""))


def condition_manifest(kind: str, holds: bool, reason: str, message: str, manifest: Manifest, now: str) -> Manifest:
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
    for index, item in enumerate(conditions):
        if item["type"] == news["type"]:
            if all(item.get(name) == news[name] for name in ("status", "reason", "message")):
                return conditions
            time = item["lastTransitionTime"] if item["status"] == news["status"] else news["lastTransitionTime"]
            return [*conditions[:index], {**news, "lastTransitionTime": time}, *conditions[index + 1 :]]
    return [*conditions, news]
