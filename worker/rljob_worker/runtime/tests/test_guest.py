"""The loop of a guest: leases in any order, versions that go back and forth, and the end."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.protocol.worker_answers import GuestLease
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES
from rljob_worker.errors import PeerLost
from rljob_worker.metrics.report import report_from_bytes
from rljob_worker.metrics.scalars import mean
from rljob_worker.runtime.guest import Guest, guest_view, unless_stopping
from rljob_worker.stages.stage import Alone, StageResult

ELASTIC = (
    "workerGroups=[{name: train, replicas: 2}, {name: rollout, accelerator: {count: 2}, elastic: {min: 2, max: 4}}]",
    "rollout.maxStaleness=1",
    "rollout.engine=VLLM",
    "rollout.parallelism.tensor=2",
)


def lease(step, index=0, version=0):
    return GuestLease(stage="rollout", step=step, rank=0, index=index, version=version, first=index, end=index + 2)


NOTHING_MORE = GuestLease(stage="")


class FakeClient:
    """Gives the leases of a list, None for a question that has no answer yet."""

    def __init__(self, *leases):
        self.leases, self.delivered, self.num_returned = list(leases), [], 0

    def next_lease(self):
        return self.leases.pop(0) if self.leases else NOTHING_MORE

    def deliver(self, of, batch, report):
        self.delivered.append((of, batch, report_from_bytes(report)))

    def return_lease(self):
        self.num_returned += 1


class FakeWeights:
    def __init__(self, gone=()):
        self.synced, self._gone = [], gone

    def sync(self, version):
        if version in self._gone:
            raise OutOfOrder(f"nobody holds version {version}")
        self.synced.append(version)


class FakeHandover:
    """Hands on what the stage before has written."""

    def take(self, plan, step):
        return self.batch if plan.after else None

    def give(self, plan, step, batch):
        self.batch = batch

    def end_step(self):
        del self.batch


def rollout(batch, context):
    numbers = np.array(context.numbers)
    columns = {"policy_version": Column.fixed(numbers * 0)}
    return StageResult(Batch(numbers, numbers, numbers, columns), {"reward/count": mean(len(numbers))})


def reward(batch, context):
    return StageResult(batch.select([]).with_columns({"rewards": Column.fixed(batch.row_ids / 2)}))


class FakeValidation:
    def run_part(self, number, num_parts):
        return {"validation/accuracy": mean(number, num_parts)}, [{"row_id": number}]


def guest_of(client, weights):
    view = guest_view(make_plan(*ELASTIC))
    stages = [view.stage(name) for name in ("rollout", "reward")]
    resources = SimpleNamespace(
        meshes={
            stages[0].mesh: SimpleNamespace(is_leader=True, sum=None, exchange=None, from_leader=Alone().from_leader)
        },
        tokenizers={"actor": SimpleNamespace(decode=str)},
    )
    schedule = tuple(zip(stages, (SimpleNamespace(run=rollout), SimpleNamespace(run=reward)), strict=True))
    return Guest(
        plan=view,
        client=client,
        resources=resources,
        schedule=schedule,
        handover=FakeHandover(),
        weights=weights,
        validation=FakeValidation(),
        num_pieces=4,
        local_rank=0,
        reporter=SimpleNamespace(send=lambda metrics: None),
        status=lambda status: None,
    )


def test_a_guest_sees_one_host_that_hands_rows_on_within_itself():
    view = guest_view(make_plan(*ELASTIC))
    group = view.group("rollout")
    assert (group.num_workers, group.elastic, group.schedule) == (2, None, ("rollout", "reward"))
    assert {(view.stage(name).group, view.stage(name).mesh.tp) for name in group.schedule} == {("rollout", 2)}
    assert [edge.name for edge in view.edges] == ["rollout->reward"]
    assert view.begun_in("reward") == "rollout"


def test_all_columns_of_a_lease_are_delivered_with_what_was_measured():
    client = FakeClient(None, lease(1, index=4))
    words = guest_of(client, FakeWeights()).run()
    ((of, batch, report),) = client.delivered
    assert of == lease(1, index=4) and batch.row_ids.tolist() == [4, 5]
    assert batch.columns.keys() == {"policy_version", "rewards"}
    assert batch["rewards"].values.tolist() == [2.0, 2.5]
    assert report.metrics["reward/count"].value == 2.0
    assert {"time/weights_seconds", "time/rollout_seconds", "time/reward_seconds"} <= report.metrics.keys()
    assert (words.code, words.cause) == (0, "nothing is left to generate, after 1 leases")


def test_of_a_piece_of_a_validation_there_is_only_a_report():
    piece = GuestLease(stage=VALIDATION_PIECES, step=0, rank=0, index=1, version=0, first=1, end=2)
    client, weights = FakeClient(piece), FakeWeights()
    guest_of(client, weights).run()
    ((of, batch, report),) = client.delivered
    assert of == piece and len(batch) == 0 and weights.synced == [0]
    assert report.metrics["validation/accuracy"].sum == 1 and report.samples == [{"row_id": 1}]


def test_a_version_is_loaded_when_it_changes_and_also_when_it_goes_back():
    client, weights = FakeClient(lease(3, version=1), lease(3, 1, 1), lease(2, version=0), lease(4, version=2)), None
    weights = FakeWeights()
    guest_of(client, weights).run()
    assert weights.synced == [1, 0, 2] and len(client.delivered) == 4


def test_a_lease_whose_version_nobody_has_any_more_is_returned():
    client, weights = FakeClient(lease(3, version=1), lease(2), lease(3, 1, 1)), FakeWeights(gone=(0,))
    guest_of(client, weights).run()
    assert client.num_returned == 1 and [of.step for of, *_ in client.delivered] == [3, 3]
    assert weights.synced == [1, 1], "what did not come whole is loaded anew"


@pytest.mark.parametrize("is_stopping", [False, True])
def test_an_error_of_a_guest_that_is_to_end_comes_of_that(is_stopping):
    parked = []
    stopping = SimpleNamespace(is_set=lambda: is_stopping)
    with pytest.raises(PeerLost), unless_stopping(stopping, lambda: parked.append(True)):
        raise PeerLost("gone")
    assert bool(parked) is is_stopping
