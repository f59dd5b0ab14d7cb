"""Bytes that a step moves over each edge, and whether data buffers can hold them.  From the job's numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.planning.plan import EdgePlan, Plan
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import format_bytes, parse_quantity

INDEX_BYTES = 24
"""row_id, group_id and num_tokens of a row, which always travel."""

OFFSET_BYTES = 8
"""What a row of a ragged column adds besides its values."""

TEXT_BYTES = 256
"""A guess at a text column of the data, whose length the job does not say."""

_PROMPT_WIDTHS = {"prompt_ids": 8}
_RESPONSE_WIDTHS = {
    "response_ids": 8,
    "response_mask": 1,
    "loss_mask": 1,
    "rollout_log_probs": 4,
    "old_log_probs": 4,
    "ref_log_probs": 4,
    "values": 4,
    "token_level_rewards": 4,
    "advantages": 4,
    "returns": 4,
    "agent_ids": 8,
    "turn_ids": 8,
}
_ROW_WIDTHS = {"rewards": 4, "truncated": 1, "policy_version": 8, "baseline_rewards": 8, "row_weights": 8}
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
    total = INDEX_BYTES
    for column in columns:
        if column in _PROMPT_WIDTHS:
            total += OFFSET_BYTES + _PROMPT_WIDTHS[column] * prompt_tokens
        elif column in _RESPONSE_WIDTHS:
            total += OFFSET_BYTES + _RESPONSE_WIDTHS[column] * response_tokens
        elif column in text_columns:
            total += OFFSET_BYTES + TEXT_BYTES
        else:
            total += _ROW_WIDTHS.get(column, _USER_ROW_WIDTH)
    return total


def host_bytes(plan: Plan) -> dict[str, Traffic]:
    """Most bytes that the data buffer of one host of each group holds in a step: rows it gives and rows it gets."""
    traffic = expected_bytes(plan)
    return {
        group.name: _share(
            [
                traffic[edge.name]
                for edge in plan.edges
                for end in (edge.producer, edge.consumer)
                if plan.stage(end).group == group.name
            ],
            group.replicas,
        )
        for group in plan.groups
    }


def memory_problems(plan: Plan) -> list[Problem]:
    """A problem for each group where even the shortest rows of a step do not fit in a host's data buffer."""
    memory = parse_quantity(plan.spec.data_buffer.memory)
    return [
        Problem(
            path="spec.dataBuffer.memory",
            found=plan.spec.data_buffer.memory,
            message=f"a step can never fit: a host of group {group} holds at least {format_bytes(held.least)}",
            fix=f"Write {_gibibytes(held.worst)}, enough for the longest rows, lower data.batchSize, or add replicas.",
        )
        for group, held in host_bytes(plan).items()
        if held.least > memory
    ]


def memory_warnings(plan: Plan) -> list[str]:
    """A sentence for each group where a step with every row at its longest does not fit in a host's data buffer."""
    memory = parse_quantity(plan.spec.data_buffer.memory)
    return [
        f"dataBuffer.memory is {plan.spec.data_buffer.memory}, but a host of group {group} holds up to "
        f"{format_bytes(held.worst)} when every row is at its longest, typically {format_bytes(held.typical)}; "
        f"{_gibibytes(held.worst)} is always enough"
        for group, held in host_bytes(plan).items()
        if held.worst > memory
    ]


def _text_columns(plan: Plan) -> frozenset[str]:
    """Text that the source of the rows carries from the data to the rewards."""
    typed = {*_PROMPT_WIDTHS, *_RESPONSE_WIDTHS, *_ROW_WIDTHS}
    written = (c for stage in plan.stages if stage.run in ("Rollout", "Sample") for c in stage.writes)
    return frozenset(c for c in written if c not in typed)


def _share(parts: list[Traffic], num_hosts: int) -> Traffic:
    """One host's part of the sum."""
    return Traffic(
        least=sum(part.least for part in parts) // num_hosts,
        typical=ceil(sum(part.typical for part in parts) / num_hosts),
        worst=ceil(sum(part.worst for part in parts) / num_hosts),
    )


def _gibibytes(count: int) -> str:
    return f"{ceil(count / 2**30)}Gi"
