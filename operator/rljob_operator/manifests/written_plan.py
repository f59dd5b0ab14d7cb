"""`WrittenPlan`: a plan and the very text of it that pods have."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from rljob_api.planning.plan import Plan


@dataclass(frozen=True)
class WrittenPlan:
    """Another version would spell the same plan in other words, with fields more or less: what pods were made with is
    told by its text, and named by the hash of it."""

    plan: Plan
    """As far as this version knows its fields."""
    text: str

    @staticmethod
    def of(plan: Plan) -> WrittenPlan:
        """As this version writes it."""
        return WrittenPlan(plan, plan.canonical_json())

    @staticmethod
    def read(text: str) -> WrittenPlan:
        """As some version wrote it: fields that are unknown here are passed over. Raises ValueError."""
        return WrittenPlan(Plan.model_validate(json.loads(text), extra="ignore"), text)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()
