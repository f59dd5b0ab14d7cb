"""Rollout and Sample with `rollout.partial`: which groups make a batch follows from the lengths of responses alone."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.tests.builders import make_plan
from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine
from rljob_worker.stages.tests.test_sample import Ranks, contents

GRPO = "algorithm={name: GRPO, groupSize: 2}"
DAPO = "algorithm={name: DAPO, groupSize: 2, sampling: {maxRounds: 6}}"
GROUP_SIZE, LONGEST = 2, 24


def partial(quantum=4, carries=3):
    return (
        f"rollout.partial={{tokensPerRound: {quantum}, maxCarries: {carries}}}",
        f"rollout.maxResponseTokens={LONGEST}",
    )


def engine_of(lengths):
    """A response is its row_id, as often as `lengths` says, which repeat."""
    return lambda: ScriptedEngine(lambda row_id, sampling: [row_id] * lengths[row_id % len(lengths)])


def is_rejected(group):
    return group % 4 == 1


def reward(row):
    """Group 1 of 4 is all right; others vary."""
    group, member = divmod(row["row_id"], GROUP_SIZE)
    return 1.0 if is_rejected(group) else member + group / 1000


@dataclass
class Expected:
    """The rule, row by row."""

    lengths: list[int]
    quantum: int
    carries: int
    batch_size: int = 4
    rejects: bool = False
    next: int = 0
    firsts: dict[int, int] = field(default_factory=dict)
    going: dict[int, int] = field(default_factory=dict)
    """Tokens of rows that have not ended, by row_id."""
    drawn: dict[int, int] = field(default_factory=dict)
    """The step in which a group began."""
    cut: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)

    def step(self, step):
        """Groups of the batch, and rounds."""
        rounds, self.firsts[step] = 0, self.next
        while len(self.waiting) < self.batch_size or not rounds or self.leaves_too_many(step):
            missing = max(0, self.batch_size - len(self.waiting))
            room = (self.carries + 1) * self.batch_size - len(self.waiting) - len(self.open)
            for group in range(self.next, self.next + min(missing, room)):
                self.drawn[group] = step
                self.going |= {group * GROUP_SIZE + member: 0 for member in range(GROUP_SIZE)}
                self.next = group + 1
            self.round(step)
            rounds += 1
        batch, self.waiting = self.waiting[: self.batch_size], self.waiting[self.batch_size :]
        return batch, rounds

    @property
    def open(self):
        return {row // GROUP_SIZE for row in self.going}

    def leaves_too_many(self, step):
        """Groups of a step that would have no place up to their last one, of which some are not complete."""
        left = {*self.waiting[self.batch_size :], *self.open}
        for since in range(step - self.carries, step + 1):
            old = {group for group in left if self.drawn[group] <= since}
            if len(old) > (since + self.carries - step) * self.batch_size and old & self.open:
                return True
        return False

    def round(self, step):
        touched = sorted({row // GROUP_SIZE for row in self.going})
        for row in sorted(self.going):
            self.going[row] += self.quantum
            is_last = step - self.drawn[row // GROUP_SIZE] >= self.carries
            length = min(self.lengths[row % len(self.lengths)], LONGEST)
            if self.going[row] >= length or is_last:
                if self.going[row] < length:
                    self.cut.add(row)
                    self.lengths_cut[row] = self.going[row]
                del self.going[row]
        unfinished = {row // GROUP_SIZE for row in self.going}
        complete = [group for group in touched if group not in unfinished]
        self.waiting += [group for group in complete if not (self.rejects and is_rejected(group))]
        self.waiting.sort()

    lengths_cut: dict[int, int] = field(default_factory=dict)


def groups_of(batch):
    """Draw numbers of a batch's groups: the tokens of a row are its draw's row_id."""
    firsts = batch["response_ids"].values[batch["response_ids"].offsets[:-1:GROUP_SIZE]]
    return (firsts // GROUP_SIZE).tolist()


lists_of_lengths = st.lists(st.integers(1, 30), min_size=1, max_size=23)
worlds = st.tuples(lists_of_lengths, st.integers(1, 9), st.integers(1, 4))


@settings(max_examples=8)
@given(worlds, st.sampled_from([GRPO, DAPO]), st.sampled_from([(1, False), (2, False), (3, True)]))
def test_batches_are_those_of_the_rule_on_any_number_of_ranks(world, algorithm, ranks):
    lengths, quantum, carries = world
    (dp_size, leases), rejects = ranks, algorithm is DAPO
    expected = Expected(lengths, quantum, carries, rejects=rejects)
    job = Ranks(algorithm, dp_size, *partial(quantum, carries), leases=leases, engine=engine_of(lengths), reward=reward)
    for step in range(1, 6):
        for engine in job.engines:
            engine.version = step - 1
        groups, rounds = expected.step(step)
        batch, figures = job.run(step)
        assert groups_of(batch) == groups
        assert batch.row_ids.tolist() == list(range((step - 1) * 8, step * 8))
        rows = [group * GROUP_SIZE + member for group in groups for member in range(GROUP_SIZE)]
        whole = [min(lengths[row % len(lengths)], LONGEST) for row in rows]
        cut = [expected.lengths_cut.get(row, length) for row, length in zip(rows, whole, strict=True)]
        assert batch["response_ids"].lengths.tolist() == cut
        over = [lengths[row % len(lengths)] > LONGEST or row in expected.cut for row in rows]
        assert batch["truncated"].values.tolist() == over
        versions = [row.tolist() for row in batch["token_versions"].to_list()]
        assert all(run == sorted(run) and run[-1] <= step - 1 for run in versions)
        assert all(run[0] >= expected.drawn[row // GROUP_SIZE] - 1 for run, row in zip(versions, rows, strict=True))
        assert figures["sampling/rounds"] == rounds
        assert figures["partial/age_max"] == max(step - expected.drawn[group] for group in groups) <= carries
        assert figures["tokens/total"] == batch.num_tokens.sum()
        assert figures["partial/rows_unfinished"] == len(expected.going)
        assert figures["partial/groups_unfinished"] == len({row // GROUP_SIZE for row in expected.going})


def test_a_row_goes_on_with_its_tokens_and_the_weights_of_the_step():
    # rows 0 .. 7 of groups 0 .. 3; row 3 has 10 tokens, others 2: round 1 completes 0 2 3, round 2 draws group 4
    job = Ranks(GRPO, 1, *partial(4), engine=engine_of([2, 2, 2, 10] + [2] * 96))
    first, figures = job.run(1)
    assert groups_of(first) == [0, 2, 3, 4]
    assert (figures["partial/rows_unfinished"], figures["partial/groups_unfinished"]) == (1, 1)
    assert figures["tokens/response_total"] == 9 * 2 + 8  # two rounds of row 3
    job.engines[0].version = 1
    second, figures = job.run(2)
    assert groups_of(second) == [1, 5, 6, 7]
    assert second["token_versions"].row(1).tolist() == [0] * 8 + [1] * 2
    assert (second["policy_version"].values[1], second["last_policy_version"].values[1]) == (0, 1)
    assert second.num_tokens[1] == 10 + len(second["prompt_ids"].row(1))
    assert figures["partial/age_max"] == 1 and figures["partial/age_mean"] == 2 / 8
    # of 12 + 6 x 2 tokens 8 are of version 0 and 2 too, of row 2, which waited for its group
    assert figures["staleness/fraction/age_1"] == 10 / 24 and figures["staleness/fraction/age_0"] == 14 / 24
    assert [figures[f"staleness/fraction/age_{age}"] for age in (2, 3, 4)] == [0, 0, 0]
    assert figures["tokens/response_total"] == 2 + 8 * 2
    # round 1 goes on with row 3 and begins with as many groups as are missing, as if none were on its way
    asked = [requests.row_ids.tolist() for requests in job.engines[0].submitted]
    assert asked == [[0, 1, 2, 3, 4, 5, 6, 7], [3, 8, 9], [3, 10, 11, 12, 13, 14, 15, 16, 17]]


def test_a_row_is_cut_off_in_the_first_round_of_its_last_step():
    # row 0 would have 24 tokens: 4 in step 1, 4 in step 2, 4 in step 3, which is its last
    job = Ranks(GRPO, 1, *partial(4, carries=2), engine=engine_of([24] + [2] * 99))
    figures = [job.run(step)[1] for step in (1, 2)]
    assert [item["partial/rows_cut_off"] for item in figures] == [0, 0]
    third, figures = job.run(3)
    assert groups_of(third)[0] == 0 and third["truncated"].values.tolist() == [True] + [False] * 7
    assert figures["partial/rows_cut_off"] == 1 and figures["partial/age_max"] == 2


@pytest.mark.parametrize("algorithm", [GRPO, DAPO], ids=["Rollout", "Sample"])
@pytest.mark.parametrize("before, after", [(2, 2), (3, 1), (1, 3)])
def test_a_stage_resumes_with_its_unfinished_groups_on_any_number_of_ranks(tmp_path, algorithm, before, after):
    lengths = [3, 17, 2, 9, 24, 5, 1, 13, 6]
    whole, stopped, resumed = (
        Ranks(algorithm, ranks, *partial(), engine=engine_of(lengths), reward=reward) for ranks in (1, before, after)
    )
    for step in (1, 2):
        whole.run(step)
        stopped.run(step)
    state = stopped.save(tmp_path)
    assert state["unfinished"] and state["carried"], "something is kept of each kind"
    resumed.load(tmp_path, state)
    for step in (3, 4, 5):
        expected, result = whole.run(step), resumed.run(step)
        assert contents(expected[0]) == contents(result[0])
        assert expected[1] == pytest.approx(result[1])


def test_rounds_are_bounded_by_the_longest_response():
    plan = make_plan(GRPO, *partial(5))
    assert plan.most_rounds(plan.stages[0]) == 5  # 5 x 5 >= 24
    plan = make_plan(DAPO, *partial(5))
    assert plan.most_rounds(plan.stages[0]) == 6 - 1 + 5
    plan = make_plan(DAPO)
    assert plan.most_rounds(plan.stages[0]) == 6 and not make_plan(GRPO).draws_in_rounds(make_plan(GRPO).stages[0])


def test_a_sample_shows_where_its_row_went_on():
    # step 1: round 1 completes 1 (rejected) 2 3, round 2 draws 4 5 (rejected), round 3 draws 6; then row 0 has 12
    job = Ranks(DAPO, 1, *partial(4), engine=engine_of([20] + [2] * 99), reward=reward)
    samples = []
    for step in (1, 2, 3):
        job.engines[0].version = step - 1
        job.run(step)
        samples.append(job.samples)
    assert [sample.get("versions") for sample in samples[0]] == [None] * len(samples[0])
    by_row = {sample["row_id"]: sample.get("versions") for sample in samples[1] if "dropped" not in sample}
    assert by_row[8] == [[0, 0], [12, 1]] and by_row[9] is None  # group 0 has the first place of step 2
    first = {sample["row_id"] // GROUP_SIZE for sample in samples[0] if "dropped" in sample}
    assert first == {1, 5} and not any("waiting" in sample for sample in samples[0])


def test_a_sample_says_that_its_group_waits_for_a_place():
    # 4 of 5 groups have a response of 24 tokens, so that round after round more are drawn and complete together
    job = Ranks(GRPO.replace("GRPO", "ReMax"), 1, *partial(12), engine=engine_of([24, 2, 24, 2, 2, 2]), reward=reward)
    job.run(1)
    waiting = {sample["row_id"] // GROUP_SIZE for sample in job.samples if "waiting" in sample}
    assert waiting == {group for group in job.stages[0].state()["carried"] if group % 4 < 2} != set()
