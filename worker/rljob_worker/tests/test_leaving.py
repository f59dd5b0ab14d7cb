"""A worker leaves once what it put has been read. On Kubernetes its data buffer, and all that is in it, ends with it.

The lead of a job that is done already says only where the job stands, and has nothing else to wait for.
"""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from rljob_api.planning.planner import plan as plan_of
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import RLJob
from rljob_worker.checkpoint.state import GroupState
from rljob_worker.checkpoint.writer import Committer, RankFiles, RankPart
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.tests.gang import TOKEN, as_processes
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.rundir.ownership import Owner, claim_run
from rljob_worker.runtime.control import Follower
from rljob_worker.runtime.joining import run_worker
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.status import StopSignal
from rljob_worker.tests.jobs import CPU, troubled_job
from rljob_worker.tests.waiting import wait_for

GROUPS = [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU}]
LAST = 2


def finish(plan, run_dir):
    """Leave the checkpoint of the last step."""
    run_dir.mkdir()
    owner, ranks = Owner(1), (("rollout", 0), ("train", 0))
    claim_run(run_dir, owner)
    engine = next(engine for engine in plan.engines if engine.trainable and engine.kind == "Train")
    trained = {engine.name: build_train_engine(plan, engine, torch.device("cpu"))}
    for group, rank in ranks:
        engines = trained if group == "train" else {}
        RankFiles(run_dir, owner, group, rank).write(LAST, RankPart.copy(engines, GroupState().to_json()))
    committer = Committer(
        run_dir, owner, plan.hash(), ranks, keep_last=1, keep_best=0, deadline_seconds=TEST_TIMEOUT_SECONDS
    )
    return committer.commit(LAST, score=None)


def lead_of(gang, run_dir):
    environment = gang.environment("train", 0)
    return WorkerEnvironment(
        plan=gang.plan, group="train", host_index=0, local_rank=0, attempt=1, peers=environment["RLJOB_PEERS"],
        buffer_socket=environment["RLJOB_BUFFER"], token=TOKEN, run_dir=run_dir, resume="auto",
    )  # fmt: skip


@pytest.fixture
def alone():
    """A process that has joined no world: an engine of another test may have left its own behind."""
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_worker_stays_until_what_it_said_has_been_heard(tiny, tmp_path, monkeypatch):
    plan = plan_of(RLJob.model_validate(troubled_job(tiny, workerGroups=GROUPS, stop={"steps": LAST})))
    checkpoint = finish(plan, tmp_path / "run")
    leaves = threading.Event()
    drain = BufferClient.drain

    def note_and_drain(client, deadline_seconds):
        with pytest.raises(DeadlineExceeded, match="rank 0 of group train waited"):
            drain(client, 0.0)  # it cannot leave yet
        leaves.set()
        drain(client, deadline_seconds)

    monkeypatch.setattr(BufferClient, "drain", note_and_drain)
    patient = {"RLJOB_BUFFER_RETRY_SECONDS": str(TEST_TIMEOUT_SECONDS)}  # nobody is given up while the lead loads
    with as_processes(plan, tmp_path, **patient) as gang, ThreadPoolExecutor(1) as pool:
        reader = gang.client("rollout", 0)
        gang.processes["rollout-0"].send_signal(signal.SIGSTOP)  # it hears nothing
        lead = pool.submit(run_worker, lead_of(gang, tmp_path / "run"), StopSignal())
        wait_for(lambda: leaves.is_set() or lead.done())
        assert leaves.is_set(), lead.result()
        gang.processes["rollout-0"].send_signal(signal.SIGCONT)
        assert (lead.result().code, lead.result().cause) == (0, "already finished")
        gang.processes["train-0"].kill()
        gang.processes["train-0"].wait()
        opening = Follower(reader, 0, Reporter(None)).open()
        assert (opening.step, opening.checkpoint) == (LAST, str(checkpoint))
