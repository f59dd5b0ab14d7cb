"""A row that grows: its tokens, its digest, and what was handed out of it before."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rljob_worker.conversations.trajectory import Sampled, TokenRow


def sampled(*tokens: int) -> Sampled:
    return Sampled(np.array(tokens), np.full(len(tokens), -0.5, np.float32), np.full(len(tokens), 4), 1)


def test_a_row_that_grows_has_all_its_tokens_and_the_digest_of_them_all():
    row, tokens, given = TokenRow(np.array([7, 8])), [7, 8], []
    for turn in range(9):  # room for 2, 4, 8, ... tokens
        given.append((row.sequence(), list(tokens)))
        row.add_sampled(sampled(10 + turn, 20 + turn), turn)
        row.add_world(np.array([30 + turn] * (turn % 3)))
        tokens += [10 + turn, 20 + turn] + [30 + turn] * (turn % 3)
        if turn % 2:
            whole = np.array([*tokens, 5], np.int64).tobytes()
            assert row.digest(np.array([5])) == hashlib.blake2b(whole, digest_size=8).hexdigest()
            assert row.digest() == hashlib.blake2b(np.array(tokens, np.int64).tobytes(), digest_size=8).hexdigest()
    assert row.sequence().tolist() == tokens and len(row) == len(tokens)
    assert row.response_ids.tolist() == tokens[2:] and row.num_sampled == 18
    assert row.num_response_tokens == len(row.mask) == len(row.turn_ids) == len(row.versions(1)) == len(tokens) - 2
    assert all(view.tolist() == before for view, before in given), "what was given before is as it was"


def test_nobody_writes_into_a_row():
    row = TokenRow(np.array([7, 8]))
    with pytest.raises(ValueError, match="read-only"):
        row.sequence()[0] = 1
