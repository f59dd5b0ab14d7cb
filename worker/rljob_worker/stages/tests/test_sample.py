"""The stage on one, two and three ranks, which are threads here: the same batches, whatever is stopped and resumed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from rljob_api.tests.builders import make_plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.checkpoint.writer import StageRows, packed_rows, read_rows
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import merge_all
from rljob_worker.rewards.tests.in_process import RewardsHere
from rljob_worker.stages import build_stage
from rljob_worker.stages.draws.owned_groups import with_versions
from rljob_worker.stages.draws.places import numbered
from rljob_worker.stages.sample import Sample
from rljob_worker.stages.stage import Resources, StageContext
from rljob_worker.stages.tests.test_draw_assignment import Owner

WARM_UP = "algorithm={name: PPO, groupSize: 4, sampling: {dynamic: true, oversampling: 2.5}, critic: {warmupSteps: 3}}"
DAPO = "algorithm={name: DAPO, groupSize: 4, sampling: {maxRounds: 4}}"
REMAX = "algorithm={name: ReMax, groupSize: 4}"
RESAMPLED = "algorithm={name: ReinforcePlusPlus, groupSize: 4, sampling: {resampling: {method: PFPPO}}}"


class FakeDataset:
    """Prompt n is n tokens long, at least one."""

    num_filtered = 0

    def __init__(self):
        self.ahead = None
        """What was to be read ahead of the next step."""

    def read_ahead(self, ordinals):
        self.ahead = ordinals.tolist()

    def fetch(self, ordinals):
        ids = [np.full(1 + n % 5, n) for n in ordinals]
        texts = Column.strings(str(n) for n in ordinals)
        return Prompts(ids, [], {"answer": texts}, Column.strings("s" for _ in ordinals))


def answering_engine():
    """A response is its row_id twice; greedy ones are -1."""
    return ScriptedEngine(lambda row_id, sampling: [row_id if sampling.temperature else -1] * 2)


def fake_reward(row):
    """Groups 1 of 4 are all right and 2 of 4 all wrong; others vary. A greedy response gets a tenth of its ordinal."""
    ordinal, member = divmod(row["row_id"], 4)
    if row["response"] == "-1 -1":
        return ordinal / 10
    return {1: 1.0, 2: 0.0}.get(ordinal % 4, ordinal + member / 10)


def fake_rewards():
    return RewardsHere(fake_reward)


class Ranks:
    """The stage on some ranks."""

    def __init__(
        self,
        algorithm: str,
        dp_size: int,
        *settings: str,
        leases: bool = False,
        engine: Callable[[], ScriptedEngine] = answering_engine,
        reward: Callable[[dict], float] = fake_reward,
    ) -> None:
        """settings: of the job, besides its algorithm."""
        plan = make_plan(algorithm, "data.batchSize=4", *settings)
        self._leases = Owner(dp_size) if leases else None
        self.spec, self.dp_size = plan.spec, dp_size
        self.engines = [engine() for _ in range(dp_size)]
        self.stages = [
            build_stage(
                plan.stages[0],
                Resources(
                    plan,
                    {},
                    {"actor": engine},
                    datasets={"actor": FakeDataset()},
                    rewards={"actor": RewardsHere(reward)},
                ),
            )
            for engine in self.engines
        ]

    def run(self, step: int) -> tuple[Batch, dict]:
        """The rows of all ranks together, and the metrics as the lead merges them."""
        with ThreadPoolExecutor(self.dp_size) as threads:
            ranks, reduce, exchange = range(self.dp_size), self._all_reduce(), self._all_to_all()
            results = list(threads.map(lambda rank: self._run(rank, step, reduce, partial(exchange, rank)), ranks))
        self.samples = [sample for result in results for sample in result.samples]
        metrics = merge_all([result.metrics for result in results])
        figures = {name: scalar.value for name, scalar in metrics.items() if not name.startswith("time/")}
        return Batch.concat([result.batch for result in results]), figures

    def _run(self, rank, step, reduce, exchange):
        context = StageContext(
            step=step,
            seed=3,
            job=self.spec,
            decode=lambda ids: " ".join(map(str, ids)),
            reduce=reduce,
            dp_rank=rank,
            dp_size=self.dp_size,
            exchange=exchange,
            leases=self._leases,
        )
        return self.stages[rank].run(None, context)

    def _all_reduce(self) -> Callable[[torch.Tensor], torch.Tensor]:
        given: list[torch.Tensor] = []
        barrier = threading.Barrier(self.dp_size, timeout=TEST_TIMEOUT_SECONDS)

        def reduce(values):
            given.append(values)
            barrier.wait()
            total = torch.stack(given).sum(0)
            if barrier.wait() == 0:
                given.clear()
            barrier.wait()
            return total

        return reduce

    def _all_to_all(self) -> Callable[[int, list[torch.Tensor]], list[torch.Tensor]]:
        given: dict[int, list[torch.Tensor]] = {}
        barrier = threading.Barrier(self.dp_size, timeout=TEST_TIMEOUT_SECONDS)

        def exchange(rank, parts):
            given[rank] = parts
            barrier.wait()
            mine = [given[source][rank] for source in range(self.dp_size)]
            barrier.wait()
            return mine

        return exchange

    def save(self, directory) -> dict:
        for rank, stage in enumerate(self.stages):
            if (rows := stage.rows()) is not None:
                name, content = packed_rows(StageRows("sample", rank, rows))
                (directory / name).write_bytes(content)
        return self.stages[0].state()

    def load(self, directory, state) -> None:
        for rank, stage in enumerate(self.stages):
            stage.load_state(state)
            stage.load_rows(read_rows(directory, "sample", rank, self.dp_size))


def contents(batch):
    columns = {name: column.to_list() for name, column in batch.columns.items()}
    return str((batch.row_ids.tolist(), batch.group_ids.tolist(), batch.num_tokens.tolist(), columns))


@pytest.mark.parametrize("algorithm", [WARM_UP, DAPO, REMAX, RESAMPLED], ids=["PPO", "DAPO", "ReMax", "PFPPO"])
def test_any_number_of_ranks_makes_the_same_batches_and_metrics(algorithm):
    alone, together = Ranks(algorithm, 1), Ranks(algorithm, 3)
    for step in (1, 2, 3, 4):
        one, several = alone.run(step), together.run(step)
        assert contents(one[0]) == contents(several[0])
        assert one[1] == pytest.approx(several[1])
        assert one[0].row_ids.tolist() == list(range((step - 1) * 16, step * 16))


@pytest.mark.parametrize("algorithm", [WARM_UP, DAPO, REMAX, RESAMPLED], ids=["PPO", "DAPO", "ReMax", "PFPPO"])
def test_leases_make_the_batches_and_metrics_that_ranks_make(algorithm):
    by_rank, leased = Ranks(algorithm, 1), Ranks(algorithm, 3, leases=True)
    for step in (1, 2, 3, 4):
        one, several = by_rank.run(step), leased.run(step)
        assert contents(one[0]) == contents(several[0])
        assert one[1] == pytest.approx(several[1])


@pytest.mark.parametrize("before, after", [(2, 2), (3, 1), (1, 3)])
def test_a_stage_resumes_with_its_surplus_on_any_number_of_ranks(tmp_path, before, after):
    whole, stopped, resumed = Ranks(WARM_UP, 1), Ranks(WARM_UP, before), Ranks(WARM_UP, after)
    for step in (1, 2):
        whole.run(step)
        stopped.run(step)
    state = stopped.save(tmp_path)
    # 4 x 2.5 = 10 are drawn in step 1, of which 0 3 4 7 8 are kept; with 8 then 10..17, where 11 12 15 16 are
    assert state == {"next_ordinal": 18, "carried": [16]}
    resumed.load(tmp_path, state)
    for step in (3, 4):
        expected, result = whole.run(step), resumed.run(step)
        assert contents(expected[0]) == contents(result[0])
        assert expected[1] == pytest.approx(result[1])


def test_kept_rows_of_a_run_that_knew_one_version_per_row_are_read():
    columns = {"response_ids": Column.ragged([[7, 8], [], [9]]), "policy_version": Column.fixed(np.array([3, 4, 5]))}
    old = Batch.build([0, 1, 2], [0, 0, 0], columns)
    result = with_versions(old)
    assert result["last_policy_version"].values.tolist() == [3, 4, 5]
    assert [row.tolist() for row in result["token_versions"].to_list()] == [[3, 3], [], [5]]
    assert with_versions(result) is result


@pytest.mark.parametrize("leases", [False, True], ids=["by rank", "leased"])
def test_surplus_is_kept_by_the_owners_of_its_draw_numbers_whoever_drew_it(leases):
    # step 1 draws 0 .. 9: 0 3 4 7 8 are accepted, and the surplus 8 is of rank 8 mod 3
    ranks = Ranks(WARM_UP, 3, leases=leases)
    for step, owned in ((1, [[], [], [8]]), (2, [[], [16], []])):
        ranks.run(step)
        assert [np.unique(stage.rows().group_ids).tolist() for stage in ranks.stages] == owned


@pytest.mark.parametrize("before, after", [(1, 3), (3, 2)])
def test_another_number_of_ranks_deals_kept_rows_anew(tmp_path, before, after):
    # numbers that are kept after step 2, as the batch of step 3 takes none of them away from their owners
    settings = ("rollout={partial: {tokensPerRound: 2, maxCarries: 3}, maxResponseTokens: 8}",)
    slow = partial(ScriptedEngine, lambda row_id, sampling: [row_id] * (7 if row_id // 4 % 2 else 2))
    stopped, resumed = (Ranks(WARM_UP, number, *settings, engine=slow) for number in (before, after))
    stopped.run(1)
    state = stopped.save(tmp_path)
    assert len(state["unfinished"]) > 1
    resumed.load(tmp_path, state)
    resumed.run(2)
    for rank, stage in enumerate(resumed.stages):
        assert set(stage.rows().group_ids % after) <= {rank}


class LastFirst(Owner):
    """Leases of one rank, in descending order."""

    def take(self, step, number, num_leases):
        lease = super().take(step, number, num_leases)
        return None if lease is None else num_leases - 1 - lease


def test_rows_leave_in_order_whatever_the_order_of_leases():
    plan = make_plan(REMAX, "data.batchSize=128")
    resources = Resources(
        plan,
        {},
        {"actor": answering_engine()},
        datasets={"actor": FakeDataset()},
        rewards={"actor": fake_rewards()},
    )
    stage = Sample(plan.stage("sample"), resources)
    context = StageContext(1, 3, plan.spec, lambda ids: " ".join(map(str, ids)), None, 0, 1, leases=LastFirst())
    batch = stage.run(None, context).batch
    assert batch.row_ids.tolist() == list(range(512))  # 256 rows a lease: groups 64 .. 127 were drawn first


def test_rows_keep_what_their_ordinals_made_of_them_under_the_numbers_of_the_batch():
    batch, _ = Ranks(DAPO, 1).run(1)
    assert batch.group_ids[::4].tolist() == [0, 1, 2, 3]
    # of 0 1 2 3 the first and last are kept, of 4 5 one, of 6 none, and 7 in the fourth and last round
    assert [row // 4 for row in batch["response_ids"].values[::8]] == [0, 3, 4, 7]


def test_remax_gets_the_greedy_reward_of_the_rows_own_prompt():
    batch, figures = Ranks(REMAX, 2).run(1)
    assert batch["baseline_rewards"].values.reshape(4, 4).tolist() == [[n / 10] * 4 for n in range(4)]
    assert figures["reward/baseline"] == pytest.approx(0.15)


def test_rows_are_drawn_anew_as_often_as_there_are_rows():
    batch, figures = Ranks(RESAMPLED, 2).run(1)
    weights = batch["row_weights"].values
    assert weights.sum() == 16 and not weights[8:12].any()  # rewards of group 2 are 0
    assert figures["sampling/rows_drawn_fraction"] == np.count_nonzero(weights) / 16


def test_a_run_that_had_no_sample_before_goes_on_after_what_it_drew():
    batch, _ = Ranks(REMAX, 1).run(5)
    assert batch["response_ids"].values[0] == 64  # ordinal 16


def test_a_batch_that_cannot_fill_stops_all_ranks():
    ranks = Ranks("algorithm={name: DAPO, groupSize: 4, sampling: {maxRounds: 1}}", 2)
    with pytest.raises(BadData, match="step 1 needs 4 groups whose rewards vary and has 2 after 1 rounds"):
        ranks.run(1)


def test_kept_groups_are_numbered_with_room_for_every_row_of_their_trajectories():
    # groups of 2 trajectories with up to 3 rows: group 5 has the numbers 30 .. 35, and here rows of both trajectories
    held = Batch.build([18, 30, 32, 33, 48], [3, 5, 5, 5, 8], {"x": Column.fixed([0, 1, 2, 3, 4])})
    batch = numbered(held, np.array([5, 8]), first_group=100, rows_per_group=6)
    assert batch.group_ids.tolist() == [100, 100, 100, 101]
    assert batch.row_ids.tolist() == [600, 602, 603, 606]
    assert batch["x"].values.tolist() == [1, 2, 3, 4]
