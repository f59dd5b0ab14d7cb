"""Rows that a filter left out: as if they had never been made."""

import numpy as np
import pytest
import torch

from rljob_api.tests.builders import REWARD, ROLLOUT, dag, make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import mean
from rljob_worker.stages.advantage import Advantage
from rljob_worker.stages.row_filter import Filter
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.update import UpdateCritic, UpdatePolicy

SMALL = ("data.batchSize=4", "algorithm.groupSize=2", "algorithm.kl.coefficient=0")
WHITENED = ("algorithm.advantage.whiten=true",)
KEEP = "name: keep, run: 'mine:keep', after: [reward], reads: [rewards], writes: [kept]"
REWARDS = np.array([0, 1, 4, 4, 2, 6, 8, 0], np.float32)
"""Of step 1: 4 prompts x 2 responses."""
WHOLE = [1, 1, 0, 0, 1, 1, 0, 0]
TORN = [1, 1, 0, 0, 1, 0, 0, 0]


def pipeline(advantage, update):
    return dag(
        ROLLOUT,
        REWARD,
        KEEP,
        f"name: advantage, run: Advantage, after: [{advantage}]",
        f"name: update, run: UpdatePolicy, after: [{update}]",
    )


EARLY = pipeline("keep", "advantage")
LATE = pipeline("reward", "advantage, keep")
RENAMED = EARLY.replace("[kept]", "[chosen]").replace("after: [keep]", "after: [keep], rename: {kept: chosen}")
NO_FILTER = dag(
    ROLLOUT,
    REWARD,
    "name: advantage, run: Advantage, after: [reward]",
    "name: update, run: UpdatePolicy, after: [advantage]",
)


def make_rows(kept=None):
    """Rows of 1 to 8 tokens."""
    lengths = np.arange(8) + 1
    ids = Column.from_lengths(np.zeros(36, np.int64), lengths)
    columns = {
        "prompt_ids": ids,
        "response_ids": ids,
        "response_mask": Column.from_lengths(np.ones(36, np.uint8), lengths),
        "rewards": Column.fixed(REWARDS),
        "advantages": Column.from_lengths(np.ones(36, np.float32), lengths),
    }
    if kept is not None:
        columns["kept"] = Column.fixed(np.array(kept))
    return Batch(np.arange(8), np.arange(8) // 2, 2 * lengths, columns)


def make_context(reduce=lambda tensor: tensor):
    return StageContext(1, 0, None, str, reduce, 0, 1)


def advantages_of(rows, *overrides, rows_per_trajectory=1):
    plan = make_plan(*SMALL, *overrides).model_copy(update={"rows_per_trajectory": rows_per_trajectory})
    stage = Advantage(plan.stage("advantage"), Resources(plan, {}, {}))
    return [row.tolist() for row in stage.run(rows, make_context()).batch["advantages"].to_list()]


@pytest.mark.parametrize("more", [(), WHITENED, ("algorithm.advantage.estimator=RLOO",)])
def test_kept_rows_have_the_advantages_of_a_step_without_the_others(more):
    kept = np.flatnonzero(WHOLE)
    alone = advantages_of(make_rows().take(kept), NO_FILTER, *more)
    advantages = advantages_of(make_rows(WHOLE), EARLY, *more)
    assert [advantages[row] for row in kept] == alone
    assert all(not any(advantages[row]) and len(advantages[row]) == row + 1 for row in (2, 3, 6, 7))


def test_a_trajectory_of_several_rows_counts_once_before_a_filter_and_behind_it():
    # the first trajectory of each group has two rows; rewards 0 | 1, 4 | 4, 2 | 6, 8 | 0, of which groups 0 and 2 stay
    rows = make_rows(WHOLE)
    twice = np.array([0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7])
    ids = np.array([0, 1, 3, 6, 7, 9, 12, 13, 15, 18, 19, 21])
    columns = {name: column.take(twice) for name, column in rows.columns.items()}
    batch = Batch(ids, rows.group_ids[twice], rows.num_tokens[twice], columns)
    advantages = advantages_of(batch, EARLY, "algorithm.advantage.normalizeStd=false", rows_per_trajectory=3)
    assert [row[0] for row in advantages] == [-0.5, -0.5, 0.5, 0, 0, 0, -2, -2, 2, 0, 0, 0]


def test_a_trajectory_without_rows_is_named():
    rows = make_rows(WHOLE).take(np.array([0, 1, 2, 3, 5, 6, 7]))
    with pytest.raises(BadData, match="trajectory 4 has no row: group 2 has 1 of groupSize 2 trajectories here"):
        advantages_of(rows, EARLY)


def test_rewards_of_rows_that_are_left_out_may_be_no_numbers():
    """A filter may be what takes such rows away."""
    rows = make_rows(WHOLE)
    rewards = np.where(WHOLE, REWARDS, np.nan)
    advantages = advantages_of(rows.with_columns({"rewards": Column.fixed(rewards)}), EARLY)
    assert advantages == advantages_of(rows, EARLY)


def test_a_part_of_a_group_is_refused_where_its_rows_are_compared():
    with pytest.raises(BadData) as caught:
        advantages_of(make_rows(TORN), EARLY)
    assert "stage keep kept 1 of the 2 rows of group 2, and the estimator GRPO compares" in str(caught.value)
    assert "or put keep after the Advantage stage" in str(caught.value)
    # nothing is compared with the rest of its group here, and after Advantage everything has been
    advantages_of(make_rows(TORN), EARLY, "algorithm.advantage.estimator=ReinforcePlusPlus")
    assert all(any(row) for row in advantages_of(make_rows(TORN), LATE)[4:6])


def test_a_part_of_a_trajectory_is_refused():
    # rows 6 to 8 of the last trajectory; with one row each the filter may take any
    rows = Batch.build([0, 3, 6, 7, 8], [0] * 5, {"kept": Column.fixed(np.array([1, 0, 1, 1, 0]))})
    assert Filter("keep").flags(rows).tolist() == [True, False, True, True, False]
    with pytest.raises(BadData, match="stage keep keeps row 9 or not, unlike the first row of its trajectory"):
        Filter("keep", rows_per_trajectory=3).flags(rows)
    whole = rows.with_columns({"kept": Column.fixed(np.array([1, 0, 1, 1, 1]))})
    assert Filter("keep", rows_per_trajectory=3).rows(whole).row_ids.tolist() == [0, 6, 7, 8]


@pytest.mark.parametrize("kept", [[0.5] * 8, [2] * 8, [[1, 0]] * 8])
def test_a_column_that_does_not_say_what_is_kept_is_refused(kept):
    with pytest.raises(BadData, match="stage keep: column kept says for each row whether it is kept"):
        advantages_of(make_rows(kept), EARLY)


def test_a_filter_is_seen_by_stages_that_come_after_it():
    early, late, renamed, none = (make_plan(*SMALL, item) for item in (EARLY, LATE, RENAMED, NO_FILTER))
    assert Filter.before(early.stage("advantage"), early) == Filter.before(early.stage("update"), early)
    assert Filter.before(early.stage("update"), early) == Filter("keep")
    assert Filter.before(late.stage("advantage"), late) is None
    assert Filter.before(late.stage("update"), late) == Filter("keep")
    assert Filter.before(renamed.stage("advantage"), renamed) == Filter("keep")
    assert Filter.before(none.stage("update"), none) is None


class Engine:
    """Remembers the rows and the denominator of each of its updates."""

    def __init__(self):
        self.updates = []

    def update(self, batch, objective, *, reference=None):
        self.updates.append((batch.row_ids.tolist(), *objective.counts(batch).values()))
        return {"update/skipped_total": mean(0.0)}


def updates_of(kept, *overrides, reduce=lambda tensor: tensor):
    plan = make_plan(*SMALL, *overrides)
    engine = Engine()
    stage = UpdatePolicy(plan.stage("update"), Resources(plan, {"actor": engine}, {}))
    stage.run(make_rows(kept), make_context(reduce))
    return engine.updates


def test_an_update_has_the_kept_rows_alone_and_counts_no_other():
    # rows 0, 1, 4 and 5 have 1, 2, 5 and 6 tokens
    assert updates_of(WHOLE, EARLY) == [([0, 1, 4, 5], 14.0)]
    assert updates_of(TORN, LATE) == [([0, 1, 4], 8.0)]
    assert updates_of([True] * 8, EARLY) == updates_of(None, NO_FILTER) == [(list(range(8)), 36.0)]


def test_a_critic_learns_from_the_kept_rows_alone():
    plan = make_plan("data.batchSize=4", "algorithm={name: PPO, groupSize: 2, kl: {coefficient: 0}}", PPO_FILTERED)
    engine = Engine()
    stage = UpdateCritic(plan.stage("critic"), Resources(plan, {"critic": engine}, {}))
    rows = make_rows(WHOLE)
    stage.run(rows.with_columns({"values": rows["advantages"], "returns": rows["advantages"]}), make_context())
    assert engine.updates == [([0, 1, 4, 5], 14.0)]


PPO_FILTERED = dag(
    ROLLOUT,
    REWARD,
    KEEP,
    "name: values, run: Values, after: [rollout]",
    "name: advantage, run: Advantage, after: [keep, values]",
    "name: update, run: UpdatePolicy, after: [advantage]",
    "name: critic, run: UpdateCritic, after: [advantage]",
)


def test_a_mini_batch_without_rows_is_no_optimizer_step():
    halves = "training.miniBatchRows=4"
    mini_batches = [rows for rows, _ in updates_of([1] * 8, EARLY, halves)]
    assert sorted(map(len, mini_batches)) == [4, 4]
    kept = [int(row in mini_batches[1]) for row in range(8)]
    assert [rows for rows, _ in updates_of(kept, EARLY, halves)] == [mini_batches[1]]
    # this rank has none of the first, and another rank has two: it takes part with no row
    others = torch.tensor([2.0, 0.0], dtype=torch.float64)
    updates = updates_of(kept, EARLY, halves, reduce=lambda mine: mine + others if mine.shape == (2,) else mine)
    assert [rows for rows, _ in updates] == [[], mini_batches[1]]


def test_a_step_of_which_nothing_is_left_says_which_stage_took_it():
    with pytest.raises(BadData, match="step 1: stage keep kept no row, so there is nothing to learn from; let it keep"):
        updates_of([0] * 8, EARLY)
    # another rank has rows: this one takes part with none
    assert updates_of([0] * 8, EARLY, reduce=lambda mine: mine + 3) == [([], 0.0)]
