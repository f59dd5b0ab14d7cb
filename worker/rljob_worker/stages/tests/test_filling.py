"""Which groups make the batch: by ordinal alone, on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.stages.filling import DROPPED, Filling, Outcome, outcomes_of, share_of_rank

KEPT, RIGHT, WRONG, SAME, OVERLONG = Outcome


def start(batch_size, carried=(), next_ordinal=0):
    return Filling(batch_size, next_ordinal, np.array(carried, np.int64))


def outcomes(rewards, correct=None, truncated=None, *, mask_truncated=False):
    rewards = np.asarray(rewards, float)
    correct = rewards if correct is None else np.asarray(correct, float)
    truncated = np.zeros(rewards.shape, bool) if truncated is None else np.asarray(truncated, bool)
    return outcomes_of(rewards, correct, truncated, mask_truncated=mask_truncated).tolist()


def test_a_group_is_kept_when_its_rewards_vary_and_otherwise_named():
    assert outcomes([[1, 0], [1, 1], [0, 0], [0.5, 0.5], [-1, -1]]) == [KEPT, RIGHT, WRONG, SAME, WRONG]


def test_the_first_reward_says_who_is_right_and_the_sum_what_varies():
    # right and polite, right and rude: the sum varies; both wrong, both polite: it does not
    assert outcomes([[1.5, 1.0], [0.5, 0.5]], correct=[[1, 1], [0, 0]]) == [KEPT, WRONG]


def test_a_group_that_was_cut_off_says_so_and_teaches_only_while_the_loss_sees_it():
    rewards, truncated = [[0, 0], [0, 1], [0, 1], [1, 1]], [[1, 1], [1, 1], [1, 0], [1, 1]]
    assert outcomes(rewards, truncated=truncated) == [OVERLONG, KEPT, KEPT, RIGHT]
    assert outcomes(rewards, truncated=truncated, mask_truncated=True) == [OVERLONG, OVERLONG, KEPT, OVERLONG]


def test_rounds_by_hand():
    filling = start(3, next_ordinal=7)
    assert filling.draw(1.0).tolist() == [7, 8, 9]
    filling = filling.after(np.array([KEPT, WRONG, KEPT]))
    assert (filling.num_missing, filling.next_ordinal) == (1, 10)
    assert filling.draw(1.5).tolist() == [10, 11]
    filling = filling.after(np.array([KEPT, KEPT]))
    assert (filling.num_missing, filling.num_rounds, filling.num_drawn, filling.num_kept) == (0, 2, 5, 4)
    assert filling.batch.tolist() == [7, 9, 10] and filling.surplus.tolist() == [11]
    assert filling.num_dropped == {RIGHT: 0, WRONG: 1, SAME: 0, OVERLONG: 0}


def test_what_was_carried_over_comes_first_and_may_be_enough():
    filling = start(2, carried=[4, 5, 6], next_ordinal=9)
    assert filling.num_missing == 0
    assert filling.batch.tolist() == [4, 5] and filling.surplus.tolist() == [6]
    assert start(4, carried=[4, 5, 6], next_ordinal=9).draw(2.0).tolist() == [9, 10]


def test_a_multiple_that_binary_cannot_hold_draws_no_prompt_too_many():
    # 10 * 1.1 == 11.000000000000002
    assert len(start(10).draw(1.1)) == 11


@pytest.mark.parametrize(
    "dropped, words",
    [
        ([WRONG, WRONG, RIGHT], "2 all wrong, 1 all right. Most need easier prompts or a larger groupSize"),
        ([RIGHT, RIGHT, OVERLONG], "2 all right, 1 all cut off at maxResponseTokens. Most need harder prompts"),
        ([SAME, SAME, SAME], "3 all of one other reward. Most need a reward that tells responses apart"),
        ([OVERLONG, OVERLONG, SAME], "Most need a larger rollout.maxResponseTokens"),
    ],
)
def test_a_batch_that_does_not_fill_says_why(dropped, words):
    said = start(4).after(np.array([KEPT, *dropped])).explain(step=6)
    assert "step 6 needs 4 groups whose rewards vary and has 1 after 1 rounds" in said
    assert "of 4 groups drawn 3 were dropped" in said and words in said


worlds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def fates_of(world):
    """What will become of every group, by ordinal."""
    return world.choice(np.array([*Outcome], np.int64), 2000, p=[0.6, 0.1, 0.1, 0.1, 0.1])


@given(worlds, st.integers(1, 12), st.integers(1, 6), st.floats(1.0, 3.0))
def test_the_batch_is_the_same_for_any_number_of_ranks(world, batch_size, dp_size, oversampling):
    fates = fates_of(world)
    alone, together = start(batch_size), start(batch_size)
    while alone.num_missing:
        alone = alone.after(fates[alone.draw(oversampling)])
    while together.num_missing:
        ordinals = together.draw(oversampling)
        known = np.zeros(len(ordinals), np.int64)  # the sum over ranks
        for rank in world.permutation(dp_size):
            mine = share_of_rank(ordinals, rank, dp_size)
            known[share_of_rank(np.arange(len(ordinals)), rank, dp_size)] += fates[mine]
        together = together.after(known)
    assert together.batch.tolist() == alone.batch.tolist() == np.flatnonzero(fates == KEPT)[:batch_size].tolist()
    assert together.surplus.tolist() == alone.surplus.tolist()
    assert together.num_dropped == alone.num_dropped


@given(worlds, st.integers(1, 8), st.floats(1.0, 3.0), st.lists(st.booleans(), min_size=1, max_size=6))
def test_no_ordinal_is_drawn_twice_and_none_is_lost(world, batch_size, oversampling, policy_stays):
    fates = fates_of(world)
    drawn, used, discarded = [], [], []
    carried, following = np.empty(0, np.int64), 0
    for stays in policy_stays:
        filling = Filling(batch_size, following, carried)
        while filling.num_missing:
            drawn += filling.draw(oversampling).tolist()
            filling = filling.after(fates[filling.draw(oversampling)])
        used += filling.batch.tolist()
        carried = filling.surplus if stays else filling.surplus[:0]
        discarded += [] if stays else filling.surplus.tolist()
        following = filling.next_ordinal
    assert drawn == list(range(following))
    assert used == sorted(set(used))  # ascending over the whole job
    assert sorted([*used, *discarded, *carried.tolist()]) == np.flatnonzero(fates[:following] == KEPT).tolist()


@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 100))
def test_ranks_share_ordinals_without_gap_or_overlap(number, dp_size, first):
    ordinals = np.arange(first, first + number)
    shares = [share_of_rank(ordinals, rank, dp_size) for rank in range(dp_size)]
    assert np.concatenate(shares).tolist() == ordinals.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_cause_has_words_and_a_fix():
    for cause in DROPPED:
        assert "Most need" in start(1).after(np.array([cause])).explain(1)
