"""The pipeline of a step as the user writes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rljob_api.v1alpha1.data import Name
from rljob_api.vocabulary.model import ApiModel, Items

Balance = Literal["None", "Tokens", "Attention"]


UPDATE_POLICY = "UpdatePolicy"
"""The stage that makes its model a policy."""


class StageSpec(ApiModel):
    """A vertex of the DAG."""

    name: Name
    """The name that `after`, metrics and edges use."""

    run: str = Field(min_length=1)
    """A stage of the catalogue, such as `Rollout`, or the user's own as `module:function`."""

    models: Items[str] = Field(default=(), max_length=16)
    """The models it uses. Unset: `actor` for Rollout and UpdatePolicy, `critic` for Values and
    UpdateCritic; RewardModel and LogProbs name theirs, and others have none."""

    rewards: Items[str] = Field(default=(), max_length=16)
    """The rewards that a Reward or Sample stage computes and adds up, by name; the first says who is right in
    validation. Unset: all of them."""

    group: str | None = None
    """The worker group it runs in. Unset: the group of its models."""

    after: Items[str] = Field(default=(), max_length=32)
    """The stages that come before it. Empty only for a Rollout, where a step begins."""

    reads: Items[str] = Field(default=(), max_length=64)
    """Columns that a user's stage reads. Built-in stages know theirs."""

    writes: Items[str] = Field(default=(), max_length=64)
    """Columns that a user's stage writes. Built-in stages know theirs."""

    rename: dict[str, str] = Field(default_factory=dict, max_length=64)
    """For each column a built-in stage reads, the column it is to read in its place."""

    balance: Balance = "None"
    """How rows are spread over workers: `None` by ordinal, `Tokens` by number of tokens, `Attention` by
    the cost of attention. Default None."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for a user's stage."""


class DagSpec(ApiModel):
    """The stages a training step runs through."""

    stages: Items[StageSpec] = Field(min_length=1, max_length=64)
    """The stages, in any order; stages of one level that share a group run in this order."""
