"""Data buffers of an old attempt, another job or another plan, at the addresses of a living gang."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server.process import serve_buffer, settings_from
from rljob_worker.databuffer.tests.gang import (
    TOKEN,
    Gang,
    group,
    in_process,
    part,
    plan_of,
    rows,
    stage,
    two_stages,
)
from rljob_worker.errors import PeerLost

COLUMNS = ("ids", "score")


@contextlib.contextmanager
def stranger(gang: Gang, name: str, host: int, lie: str) -> Iterator[BufferClient]:
    """A data buffer next to the gang's own of that host, with the gang's address book, and a worker of it."""
    other = {**gang.plan.to_json(), "job": "other"} if lie == "plan" else gang.plan.to_json()
    token = "guessed" if lie == "token" else TOKEN
    place = gang.directory / "stranger"
    place.mkdir()
    (place / "plan.json").write_text(json.dumps(other))
    (place / "token").write_text(token)
    environment = {
        **gang.environment(name, host),
        "RLJOB_PLAN": str(place / "plan.json"),
        "RLJOB_TOKEN_FILE": str(place / "token"),
        "RLJOB_ATTEMPT": "0" if lie == "attempt" else "1",
        "RLJOB_BUFFER": str(place / "sock"),
    }
    settings = settings_from(environment)
    with serve_buffer(settings), contextlib.closing(_worker_of(settings.identity, place / "sock")) as client:
        yield client


def _worker_of(pod: Identity, socket: Path) -> BufferClient:
    worker = Identity(pod.token, pod.attempt, pod.plan_hash, pod.group, pod.host, rank=pod.host)
    return BufferClient(socket, worker)


@pytest.mark.parametrize(
    "lie, reason",
    [
        ("attempt", "train-0 is of attempt 0, this data buffer serves attempt 1"),
        ("token", "train-0 does not have the token of this job"),
        ("plan", "train-0 runs plan .*, this data buffer serves plan"),
    ],
)
def test_a_strange_data_buffer_gets_no_rows_and_uses_none_up(tmp_path: Path, lie: str, reason: str):
    plan = two_stages((1, 1), (1, 1))
    with in_process(plan, tmp_path) as gang:
        gang.client("rollout", 0).put(1, "a->b", part(plan, 1, 0, 1))
        refused = pytest.raises(PeerLost, match=f"host rollout-0.*{reason}")
        with refused, stranger(gang, "train", 0, lie) as reader:
            reader.get(1, "a->b")
        # a reader of a part gives it back; here it is still whole
        assert same(gang.client("train", 0).get(1, "a->b"), part(plan, 1, 0, 1).select(COLUMNS))


@pytest.mark.parametrize("lie", ["attempt", "token", "plan"])
def test_rows_that_a_strange_data_buffer_tells_of_do_not_mix_with_the_gangs_own(tmp_path: Path, lie: str):
    both = [stage("a", "train", Mesh(dp=2)), stage("b", "train", Mesh(dp=2), "Tokens")]
    plan = plan_of([group("train", 2, 1, ["a", "b"])], both, {"a->b": COLUMNS})
    with in_process(plan, tmp_path) as gang:
        refused = pytest.raises(PeerLost, match="host train-0 refused")
        with refused, stranger(gang, "train", 1, lie) as other:
            # rows of the second host, but longer; train-0 gathers who has what, and so is notified first
            other.put(1, "a->b", rows(range(8, 16), 2, [9] * 16))
            other.get(1, "a->b")
        clients = [gang.client("train", rank) for rank in range(2)]
        for rank, client in enumerate(clients):
            client.put(1, "a->b", part(plan, 1, rank, 2))
        got = [client.get(1, "a->b") for client in clients]
        assert same(Batch.concat(got), part(plan, 1, 0, 1).select(COLUMNS))
