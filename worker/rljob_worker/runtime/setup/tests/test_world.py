"""The group's world over real processes: how the others report the end of one of them."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rljob_api.tests.builders import make_plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import PeerLost
from rljob_worker.runtime.setup.world import world
from rljob_worker.tests.forking import forking

(TWO_WORKERS,) = make_plan("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]").groups


class FakeStatusChannel:
    """What ranks post, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set_status(self, status: dict[str, object]) -> None:
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(json.dumps(status))
        fresh.rename(self._path)

    def peer_status(self, group: str, host: int, *, rank: int | None = None) -> dict[str, object]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


def add_until_somebody_goes(rank: int, folder: Path, victim: int) -> None:
    try:
        with world(
            FakeStatusChannel(folder / "channel"),
            TWO_WORKERS,
            rank,
            host="127.0.0.1",
            attempt=1,
            deadline_seconds=TEST_TIMEOUT_SECONDS,
        ):
            dist.all_reduce(torch.ones(4))
            if rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                dist.all_reduce(torch.ones(4))
                time.sleep(0.01)
    except PeerLost as error:
        (folder / "told").write_text(str(error))


@pytest.mark.parametrize("victim", [0, 1])
def test_the_killed_one_is_the_cause_and_the_other_says_that_it_lost_a_peer(tmp_path: Path, victim: int) -> None:
    """A gang's 75 is an echo: the 137 beside it, often a full memory, stays the cause."""
    ranks = [forking().Process(target=add_until_somebody_goes, args=(rank, tmp_path, victim)) for rank in range(2)]
    for item in ranks:
        item.start()
    for item in ranks:
        item.join()
    assert ranks[victim].exitcode == -signal.SIGKILL
    said = (tmp_path / "told").read_text()
    assert said.startswith("a collective of worker group train lost a peer: ") and "\n" not in said
