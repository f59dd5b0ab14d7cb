"""Rows of one length for an update whose time or memory is measured, whatever it learns."""

from __future__ import annotations

import numpy as np

from rljob_worker.batch import Batch, Column


def even_rows(count: int, prompt: int, response: int, least: int, vocabulary: int) -> Batch:
    """With prompts and responses of a given number of tokens, from `least` up to the vocabulary, that nobody shares."""
    rng = np.random.default_rng(0)
    prompts, responses = (
        Column.ragged([rng.integers(least, vocabulary, length) for _ in range(count)]) for length in (prompt, response)
    )
    columns = {
        "prompt_ids": prompts,
        "response_ids": responses,
        "advantages": Column.from_lengths(np.ones(len(responses.values)), responses.lengths),
        "weight": Column.fixed(np.ones(count)),
    }
    return Batch.build(np.arange(count), np.arange(count), columns, prompts.lengths + responses.lengths)
