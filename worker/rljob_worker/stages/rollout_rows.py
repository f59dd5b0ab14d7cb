"""Rows of prompts, and with the responses that were sampled to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rljob_worker.batch import Batch, Column
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.rollout.generate import Responses


def rows_of_groups(group_ids: np.ndarray, group_size: int, rows_per_trajectory: int = 1) -> np.ndarray:
    """The first row of every trajectory, groups in order: [len(group_ids) * group_size].

    trajectory_id = group_id * group_size + member; row_id = trajectory_id * rows_per_trajectory + index of the row.
    """
    return (group_ids[:, None] * group_size + np.arange(group_size)).reshape(-1) * rows_per_trajectory


def asked_batch(prompts: Prompts, row_ids: np.ndarray, group_ids: np.ndarray, group_size: int) -> Batch:
    """The rows that are asked for; what belongs to the prompt is stored once for its group."""
    heads, num_rows = np.arange(len(group_ids), dtype=np.int64) * group_size, len(row_ids)
    prompt_ids = Column.ragged(prompts.prompt_ids)
    of_prompts = prompts.columns | {"source": prompts.source, "prompt_ids": prompt_ids}
    columns = {name: column.per_group_at(heads, num_rows) for name, column in of_prompts.items()}
    return Batch(row_ids, np.repeat(group_ids, group_size), np.repeat(prompt_ids.lengths, group_size), columns)


def without_responses(rows: Batch) -> Batch:
    """The rows with as many tokens as their prompts have."""
    return Batch(rows.row_ids, rows.group_ids, rows.lengths("prompt_ids"), rows.columns)


def rollout_batch(asked: Batch, responses: Responses, version: int) -> Batch:
    """The rows with their responses."""
    columns = {
        "response_ids": responses.response_ids,
        "response_mask": replace(
            responses.response_ids, values=np.ones(len(responses.response_ids.values), np.uint8), dtype="uint8"
        ),
        "rollout_log_probs": responses.log_probs,
        "truncated": Column.fixed(responses.truncated),
        **columns_of_versions(responses.token_versions, version),
    }
    if responses.prompt_routes is not None and responses.routes is not None:
        columns["prompt_routed_experts"] = replace(responses.prompt_routes, per_group=True)
        columns["routed_experts"] = responses.routes
    num_tokens = asked.num_tokens + responses.response_ids.lengths
    return Batch(asked.row_ids, asked.group_ids, num_tokens, {**asked.columns, **columns})


def columns_of_versions(token_versions: Column, version: int) -> dict[str, Column]:
    """Which weights each token was drawn with, ragged int64, and those of a row's first and last token; `version` for a
    row without one."""
    assert token_versions.offsets is not None, "one per token"
    ends, is_there = token_versions.offsets, token_versions.lengths > 0
    first, last = np.full((2, len(is_there)), version, np.int64)
    first[is_there], last[is_there] = (token_versions.values[at[is_there]] for at in (ends[:-1], ends[1:] - 1))
    return {
        "policy_version": Column.fixed(first),
        "last_policy_version": Column.fixed(last),
        "token_versions": token_versions,
    }
