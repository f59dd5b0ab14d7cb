"""Bytes of a row: of its index, and of each column of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_api.catalogue.columns import ROUTES

INDEX_BYTES = 24
"""row_id, group_id and num_tokens of a row, which always travel."""

OFFSET_BYTES = 8
"""What a row of a ragged column adds besides its values."""

_PROMPT_WIDTHS = {"prompt_ids": 8}
_RESPONSE_WIDTHS = {
    "response_ids": 8,
    "response_mask": 1,
    "loss_mask": 1,
    "rollout_log_probs": 4,
    "token_versions": 8,
    "old_log_probs": 4,
    "ref_log_probs": 4,
    "values": 4,
    "step_rewards": 8,
    "advantages": 4,
    "returns": 4,
    "agent_ids": 8,
    "turn_ids": 8,
    "turn_rewards": 8,
}
_ROW_WIDTHS = {
    "rewards": 4,
    "truncated": 1,
    "policy_version": 8,
    "last_policy_version": 8,
    "baseline_rewards": 8,
    "row_weights": 8,
    "kept": 8,
    "environment_reward": 8,
    "success": 1,
    "success_at_end": 1,
    "finish_step": 8,
    "task_id": 8,
    "progress_rewards": 8,
    "agent": 40,
}


def known_bytes(columns: Iterable[str], response_tokens: int, route_bytes: int = 0) -> int:
    """Bytes of one row besides its prompt: its index and those columns whose size follows from the length.

    int64 ids take 8 bytes a token, masks 1, float32 numbers 4, and every ragged column one offset more. route_bytes: of
    a token's routes; 0 where that is not known.
    """
    total = INDEX_BYTES
    for column in columns:
        if column in _PROMPT_WIDTHS:
            total += OFFSET_BYTES
        elif column in _RESPONSE_WIDTHS:
            total += OFFSET_BYTES + _RESPONSE_WIDTHS[column] * response_tokens
        elif column in ROUTES and route_bytes:
            total += OFFSET_BYTES + (route_bytes * response_tokens if column == ROUTES[1] else 0)
        else:
            total += _ROW_WIDTHS.get(column, 0)
    return total


def prompt_bytes(columns: Iterable[str], prompt_tokens: int, route_bytes: int = 0) -> int:
    """Bytes of what the rows of a group have together, and which is stored once: 8 a token of its prompt, and its
    routes."""
    widths = _PROMPT_WIDTHS | {ROUTES[0]: route_bytes}
    return sum(widths.get(column, 0) * prompt_tokens for column in columns)


def is_known(column: str, route_bytes: int = 0) -> bool:
    """Whether it is known how large the column is: neither of text of the data nor of a column of the user's own."""
    if column in ROUTES:
        return route_bytes > 0
    return column in _PROMPT_WIDTHS or column in _RESPONSE_WIDTHS or column in _ROW_WIDTHS
