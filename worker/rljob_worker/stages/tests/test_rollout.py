"""The rollout stage: rows, versions and routes."""

from dataclasses import replace

import numpy as np

from rljob_api.tests.builders import ADVANTAGE, REFERENCE, REWARD, ROLLOUT, UPDATE, dag, make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine, ended, responses_of
from rljob_worker.rewards.combine import combine
from rljob_worker.rewards.results import RewardResult
from rljob_worker.rewards.tests.in_process import RewardsHere
from rljob_worker.stages.rewarding.reward import Reward, begins_rewards, reward_rows, shown_row
from rljob_worker.stages.rollout import Rollout, staleness_metrics
from rljob_worker.stages.rollout_rows import asked_batch, columns_of_versions, rollout_batch, rows_of_groups
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.tests.test_draw_assignment import Owner
from rljob_worker.stages.tests.test_sample import FakeDataset, LastFirst


def test_rows_count_on_over_the_job():
    # groups 10 and 11 of 2 rows each
    assert rows_of_groups(np.array([10, 11]), 2).tolist() == [20, 21, 22, 23]
    # with up to 3 rows a trajectory, each begins a third number
    assert rows_of_groups(np.array([10, 11]), 2, 3).tolist() == [60, 63, 66, 69]


def prompts_of(*prompt_ids):
    names = [f"set{i}" for i in range(len(prompt_ids))]
    columns = {"answer": Column.strings([f"a{i}" for i in range(len(prompt_ids))])}
    return Prompts([np.array(ids) for ids in prompt_ids], names, columns, Column.strings(names))


def test_what_belongs_to_a_prompt_is_stored_once_for_its_group():
    # prompts of 3 and 1 tokens, two responses each, of 1, 2, 3 and 0 tokens
    responses = responses_of([0], [1, 2], [3, 4, 5], [])
    responses = replace(responses, token_versions=Column.from_lengths(np.full(6, 5), [1, 2, 3, 0]))
    groups = np.array([10, 11])
    asked = asked_batch(prompts_of([1, 2, 3], [4]), rows_of_groups(groups, 2), groups, 2)
    batch = rollout_batch(asked, responses, version=5)
    assert batch.columns["prompt_ids"].values.tolist() == [1, 2, 3, 4]
    assert [name for name, column in batch.columns.items() if column.per_group] == ["answer", "source", "prompt_ids"]
    assert [row.tolist() for row in batch["prompt_ids"].to_list()] == [[1, 2, 3], [1, 2, 3], [4], [4]]
    assert batch["answer"].to_list() == ["a0", "a0", "a1", "a1"]
    assert batch["source"].to_list() == ["set0", "set0", "set1", "set1"]
    assert batch.group_ids.tolist() == [10, 10, 11, 11] and batch.row_ids.tolist() == [20, 21, 22, 23]
    assert batch.num_tokens.tolist() == [4, 5, 4, 1]
    assert batch["policy_version"].values.tolist() == [5] * 4
    assert batch["response_mask"].values.tolist() == [1] * 6


def test_a_row_says_which_weights_drew_its_first_and_its_last_token():
    # the second response went on with newer weights, the third has no token
    versions = Column.ragged([[5], [4, 4, 6], []])
    columns = columns_of_versions(versions, version=7)
    assert columns["policy_version"].values.tolist() == [5, 4, 7]
    assert columns["last_policy_version"].values.tolist() == [5, 6, 7]
    assert columns["token_versions"] is versions
    batch = Batch.build([0, 1, 2], [0, 0, 0], columns)
    # step 7 begins to train version 6: tokens are 1 | 2, 2, 0 versions behind
    spec = make_plan().spec
    metrics = staleness_metrics(batch, spec, 7)
    assert (metrics["staleness/mean"].value, metrics["staleness/max"].value) == (5 / 4, 2.0)
    assert "staleness/max" not in staleness_metrics(batch.take([2]), spec, 7)


def test_routes_of_a_prompt_are_stored_once_for_its_group():
    # prompts of 3 and 1 tokens, two responses each, of 1, 2, 3 and 0 tokens; one layer, one expert
    def routes(*lengths):
        return Column.from_lengths(np.arange(sum(lengths), dtype=np.uint8).reshape(-1, 1, 1), lengths)

    recorded = {"prompt_routes": routes(3, 0, 1, 0), "routes": routes(1, 2, 3, 0)}
    responses = replace(responses_of([0], [1, 2], [3, 4, 5], []), **recorded)
    groups = np.array([10, 11])
    asked = asked_batch(prompts_of([1, 2, 3], [4]), rows_of_groups(groups, 2), groups, 2)
    batch = rollout_batch(asked, responses, version=5)
    assert [row[:, 0, 0].tolist() for row in batch["prompt_routed_experts"].to_list()] == [[0, 1, 2]] * 2 + [[3]] * 2
    assert batch.columns["prompt_routed_experts"].per_group
    assert [row[:, 0, 0].tolist() for row in batch["routed_experts"].to_list()] == [[0], [1, 2], [3, 4, 5], []]


def test_a_rank_without_prompts_has_the_columns_all_the_same():
    nobody = np.empty(0, np.int64)
    batch = rollout_batch(asked_batch(prompts_of(), nobody, nobody, 2), responses_of(), version=0)
    assert len(batch) == 0 and batch.columns["prompt_ids"].per_group and "answer" in batch


def test_reward_functions_see_the_groups_values_in_every_row():
    asked = asked_batch(prompts_of([7, 8]), np.array([4, 5]), np.array([2]), 2)
    batch = rollout_batch(asked, responses_of([0], [1]), version=0)
    decoded = []
    rows = reward_rows(batch, lambda ids: decoded.append(ids.tolist()) or f"text of {ids.tolist()}")
    assert [(row["row_id"], row["prompt"], row["response"], row["answer"]) for row in rows] == [
        (4, "text of [7, 8]", "text of [0]", "a0"),
        (5, "text of [7, 8]", "text of [1]", "a0"),
    ]
    assert decoded.count([7, 8]) == 1


class OneByOne(ScriptedEngine):
    """Later rows end first, one with every `advance`."""

    def advance(self):
        if self.submitted and not hasattr(self, "coming"):
            self.coming = self.submitted[-1].row_ids.tolist()[::-1]
        if not getattr(self, "coming", []):
            return ended(np.empty(0, np.int64), np.empty(0, np.int64), [])
        row_id = self.coming.pop(0)
        return ended(np.array([row_id]), np.zeros(1, np.int64), [self.answer(row_id, self.submitted[-1].samplings[0])])


class NothingToTell(LastFirst):
    def tell(self, step, number, outcomes):
        raise AssertionError("all are accepted, and nobody has to hear it")


def leased_rollout(owner, *, rank=0, size=1, lease_rows=8):
    """The stage on a rank, of 4 groups of 4 rows."""
    groups = f"workerGroups=[{{name: train}}, {{name: rollout, replicas: {size}}}]"
    plan = make_plan(groups, "data.batchSize=4", f"rollout.leaseRows={lease_rows}")
    engine, dataset = ScriptedEngine(lambda row_id, sampling: [row_id] * 2), FakeDataset()
    resources = Resources(plan, {}, {"actor": engine}, datasets={"actor": dataset}, rewards={})
    context = StageContext(2, 0, plan.spec, str, None, rank, size, leases=owner)
    result = Rollout(plan.stage("rollout"), resources).run(None, context)
    return result, [item.row_ids.tolist() for item in engine.submitted], dataset.ahead


def test_leases_are_generated_one_by_one_and_rows_leave_in_order():
    result, submitted, ahead = leased_rollout(NothingToTell())
    # step 2 has groups 4 to 7: the second lease of two groups, then the first
    assert submitted == [list(range(24, 32)), list(range(16, 24))]
    assert result.batch.row_ids.tolist() == list(range(16, 32))
    assert [ids.tolist() for ids in result.batch["response_ids"].to_list()] == [[row, row] for row in range(16, 32)]
    # the lease of step 3 that this rank is likely to take first, read while the first of step 2 was generated
    assert ahead == [8, 9]
    figures = {name: (scalar.sum, scalar.count) for name, scalar in result.metrics.items()}
    assert figures["response_length/mean"] == (32.0, 16.0) and figures["tokens/response_total"][0] == 32.0


def test_a_rank_that_finds_no_lease_has_no_row_but_all_columns():
    owner = Owner()
    first, _, _ = leased_rollout(owner, rank=0, size=2, lease_rows=16)
    second, submitted, _ = leased_rollout(owner, rank=1, size=2, lease_rows=16)
    assert len(first.batch) == 16 and len(second.batch) == 0 and submitted == [[]]
    assert set(second.batch.columns) == set(first.batch.columns)


def stages_of(*overrides, engine, rewards):
    plan = make_plan("data.batchSize=2", "algorithm.groupSize=2", *overrides)
    resources = Resources(plan, {}, {"actor": engine}, datasets={"actor": FakeDataset()}, rewards={"actor": rewards})
    context = StageContext(1, 0, plan.spec, lambda ids: " ".join(map(str, ids)), None, 0, 1)
    return Rollout(plan.stage("rollout"), resources), Reward(plan.stage("reward"), resources), context


def run_both(rollout, reward, context):
    batch = rollout.run(None, context).batch
    return reward.run(batch.select(["prompt_ids", "response_ids", "source", "answer"]), context)


def test_rewards_of_rows_that_end_together_are_begun_in_their_order():
    runner = RewardsHere(lambda row: float(row["response"]))
    asked = asked_batch(prompts_of([7], [8]), np.array([0, 1, 2, 3]), np.array([0, 1]), 2)
    decode = lambda ids: " ".join(map(str, ids))  # noqa: E731
    begins_rewards(runner, asked, decode)(ended(np.array([3, 0]), np.zeros(2, np.int64), [[30], [1]]))
    assert runner.begun == [[0, 3]]
    assert runner.collect([0, 3]).total.tolist() == [1.0, 30.0]


def test_rewards_are_begun_as_rows_end_and_are_what_they_would_be_afterwards():
    def judge(row):
        return len(row["prompt"]) + float(row["response"]) + len(row["answer"]) + row["num_response_tokens"]

    early, late = RewardsHere(judge), RewardsHere(judge)
    answer = lambda row_id, sampling: [row_id]  # noqa: E731
    first = run_both(*stages_of(engine=OneByOne(answer), rewards=early))
    # a stage that comes in between may write responses anew
    look = "name: look, run: 'm:f', after: [rollout], reads: [response_ids]"
    between = dag(ROLLOUT, look, REWARD.replace("[rollout]", "[rollout, look]"), REFERENCE, ADVANTAGE, UPDATE)
    then = run_both(*stages_of(between, engine=OneByOne(answer), rewards=late))
    assert early.begun == [[3], [2], [1], [0]] and late.begun == [[0, 1, 2, 3]]
    assert first.batch["rewards"].values.tolist() == then.batch["rewards"].values.tolist()
    assert first.samples == then.samples and len(first.samples) == 4
    assert first.metrics == then.metrics


def test_a_step_tells_reward_and_accuracy_of_each_data_set_and_shows_reference_answers():
    """Two rewards, the second of weight 0.5: total 1 + 0.5 x 2 where the first is 1."""
    rewards = "rewards=[{name: correct, run: 'm:f', column: answer}, {name: style, run: 'm:g', weight: 0.5}]"
    plan = make_plan("data.batchSize=2", "algorithm.groupSize=2", rewards)
    runner = ScoredAs([[1.0, 2.0], [0.0, 2.0], [0.0, 0.0], [0.0, 4.0]], weights=[1.0, 0.5])
    resources = Resources(plan, {}, {}, datasets={"actor": FakeDataset()}, rewards={"actor": runner})
    groups = np.array([0, 1])
    asked = asked_batch(prompts_of([7], [8]), rows_of_groups(groups, 2), groups, 2)
    batch = rollout_batch(asked, responses_of([0], [1], [2], [3]), version=0)
    context = StageContext(1, 0, plan.spec, lambda ids: " ".join(map(str, ids)), None, 0, 1)
    result = Reward(plan.stage("reward"), resources).run(batch, context)
    figures = {name: (scalar.sum, scalar.count) for name, scalar in result.metrics.items() if "training" in name}
    assert figures == {
        "training/reward/set0": (3.0, 2),
        "training/reward/set1": (2.0, 2),
        "training/accuracy/set0": (1.0, 2),
        "training/accuracy/set1": (0.0, 2),
    }
    assert [sample["reference"] for sample in result.samples] == ["a0", "a0", "a1", "a1"]


class ScoredAs:
    """A RewardRunner that gives rows [rows, num_rewards] whatever they are."""

    def __init__(self, rewards, weights):
        self.rewards = np.array(rewards)
        self.total = combine(self.rewards, weights)

    def begin(self, rows):
        """Nothing to do."""

    def collect(self, row_ids, *, exactly=False):
        return RewardResult(self.rewards, self.total, {}, ())


def test_a_job_whose_rewards_read_no_column_shows_no_reference():
    plan = make_plan("rewards=[{name: style, run: 'm:g'}]")
    row = {"row_id": 1, "prompt": "p", "response": "r", "num_response_tokens": 1, "source": "s"}
    assert shown_row(row, plan.spec) == {"row_id": 1, "source": "s", "prompt": "p", "response": "r"}
