"""Whose a child is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.vocabulary import keys

Object = Mapping[str, Any]


def controller(child: Object) -> Object:
    """The owner reference that controls the child; empty when nobody does."""
    owners = child["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), {})


def is_child_of(child: Object, job_uid: str) -> bool:
    """Whether the job of this uid controls the object."""
    return controller(child).get("uid") == job_uid


def is_of_predecessor(child: Object, job: str, job_uid: str) -> bool:
    """Whether an earlier job of the same name controls it; garbage collection is about to delete it."""
    owner = controller(child)
    return owner.get("kind") == keys.KIND and owner.get("name") == job and owner.get("uid") != job_uid
