"""Bytes that a step moves over each edge.  From the job's numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.catalogue.widths import OFFSET_BYTES, is_known, known_bytes
from rljob_api.planning.plan import EdgePlan, Plan

TEXT_BYTES = 256
"""A guess at a text column of the data, whose length the job does not say."""

_USER_ROW_WIDTH = 8


@dataclass(frozen=True)
class Traffic:
    """Bytes in one step: at least, with half-full prompts and responses, and with every row at its longest."""

    least: int
    typical: int
    worst: int


def expected_bytes(plan: Plan) -> dict[str, Traffic]:
    """Bytes of every data edge in one step, over the whole job; 0 for an edge within a worker."""
    return {edge.name: edge_traffic(plan, edge) for edge in plan.edges}


def edge_traffic(plan: Plan, edge: EdgePlan) -> Traffic:
    """Bytes of one data edge in one step."""
    if edge.transport == "Local":
        return Traffic(0, 0, 0)
    prompt, response = plan.spec.data.max_prompt_tokens, plan.spec.rollout.max_response_tokens
    text_columns = _text_columns(plan)
    lengths = ((1, 1), (ceil(prompt / 2), ceil(response / 2)), (prompt, response))
    sizes = (plan.spec.num_rows * row_bytes(edge.columns, *each, text_columns) for each in lengths)
    return Traffic(*sizes)


def row_bytes(
    columns: tuple[str, ...], prompt_tokens: int, response_tokens: int, text_columns: frozenset[str] = frozenset()
) -> int:
    """Bytes of one row with these columns and lengths; a column unknown to the catalogue counts as one number."""
    unknown = [column for column in columns if not is_known(column)]
    guessed = sum(OFFSET_BYTES + TEXT_BYTES if column in text_columns else _USER_ROW_WIDTH for column in unknown)
    return known_bytes(columns, prompt_tokens, response_tokens) + guessed


def _text_columns(plan: Plan) -> frozenset[str]:
    """Text that the source of the rows carries from the data to the rewards."""
    written = (c for stage in plan.stages if stage.run in ("Rollout", "Sample") for c in stage.writes)
    return frozenset(c for c in written if not is_known(c))
