"""Bytes that a step moves over each edge.  From the job's numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.catalogue.column_widths import OFFSET_BYTES, is_known, known_bytes, prompt_bytes
from rljob_api.planning.plan import EdgePlan, Plan

TEXT_BYTES = 256
"""A guess at a text column of the data, whose length the job does not say."""

ROUTE_BYTES = 384
"""A guess at the experts of a token, whose number the job does not say: 48 layers of 8, as Qwen3-30B-A3B has them."""

_USER_ROW_WIDTH = 8


@dataclass(frozen=True)
class EdgeTraffic:
    """Bytes in one step: at least, with half-full prompts and responses, and with every row at its longest."""

    least: int
    typical: int
    worst: int


def expected_bytes(plan: Plan) -> dict[str, EdgeTraffic]:
    """Bytes of every data edge in one step, over the whole job; 0 for an edge within a worker."""
    return {edge.name: edge_traffic(plan, edge) for edge in plan.edges}


def edge_traffic(plan: Plan, edge: EdgePlan) -> EdgeTraffic:
    """Bytes of one data edge in one step."""
    if edge.transport == "Local":
        return EdgeTraffic(0, 0, 0)
    spec, consumer, text_columns = plan.spec, plan.stage(edge.consumer), _text_columns(plan)
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens

    def step(prompt_tokens: int, response_tokens: int, num_copies: int) -> int:
        num_rows = spec.num_rows * spec.rows_per_trajectory
        if spec.rollout.played is not None:  # of which each row has a prompt of its own
            num_copies = num_rows
        rows = num_rows * planned_row_bytes(edge.columns, response_tokens, text_columns)
        return rows + num_copies * group_bytes(edge.columns, prompt_tokens, text_columns)

    # rows that are dealt out one by one may all lie on different workers, each with its group's columns
    stays_together = consumer.balance == "None" or consumer.needs_groups
    most_copies = spec.data.batch_size if stays_together else spec.num_rows
    typical = step(ceil(prompt / 2), ceil(response / 2), spec.data.batch_size)
    worst = max(step(*tokens, most_copies) for tokens in spec.longest_rows)
    return EdgeTraffic(step(1, 1, spec.data.batch_size), min(typical, worst), worst)


def planned_row_bytes(
    columns: tuple[str, ...], response_tokens: int, text_columns: frozenset[str] = frozenset()
) -> int:
    """Bytes of one row besides what is stored once for its group; a column of the user's own counts as one number."""
    unknown = [column for column in columns if not is_known(column, ROUTE_BYTES)]
    guessed = sum(OFFSET_BYTES if column in text_columns else _USER_ROW_WIDTH for column in unknown)
    return known_bytes(columns, response_tokens, ROUTE_BYTES) + guessed


def group_bytes(columns: tuple[str, ...], prompt_tokens: int, text_columns: frozenset[str] = frozenset()) -> int:
    """Bytes of what the rows of a group have together: its prompt with its routes, and text of the data."""
    texts = sum(TEXT_BYTES for column in columns if column in text_columns)
    return texts + prompt_bytes(columns, prompt_tokens, ROUTE_BYTES)


def _text_columns(plan: Plan) -> frozenset[str]:
    """Text that the source of the rows carries from the data to the rewards."""
    written = (c for stage in plan.stages if stage.run in ("Rollout", "Sample") for c in stage.writes)
    return frozenset(c for c in written if not is_known(c, ROUTE_BYTES))
