"""Whole gangs with certificates, and what meets them with certificates of something else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rljob_api.certificates import issue
from rljob_api.planning.plan import Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server.process import serve_buffer, settings_from
from rljob_worker.databuffer.tests.gang import TOKEN, Gang, in_process, part, two_stages
from rljob_worker.databuffer.tests.warm import BufferProcess, warm_processes
from rljob_worker.errors import InvalidJob, PeerLost
from rljob_worker.local.pods.certificates import write_issued
from rljob_worker.tests.certificates import issue_here
from rljob_worker.tests.warm import run_warm

COLUMNS = ("ids", "score")


def certificates_of(plan: Plan, place: Path, attempt: int = 1, ago: timedelta = timedelta()) -> Path:
    """Where certificates are that were issued so long ago for the hosts of the plan."""
    hosts = {f"{g.name}-{host}": ("127.0.0.1",) for g in plan.groups for host in range(g.replicas)}
    write_issued(issue(plan.job, attempt, hosts, datetime.now(UTC) - ago), place)
    return place


@pytest.mark.parametrize("balance", ["None", "Tokens"])
def test_a_gang_exchanges_rows_and_ends(tmp_path: Path, balance: str):
    plan = two_stages((2, 1), (2, 1), balance=balance, tls=True)
    with warm_processes(plan, tmp_path) as gang:
        producers = [gang.client("rollout", rank) for rank in range(2)]
        consumers = [gang.client("train", rank) for rank in range(2)]
        for step in (1, 2):
            for rank, producer in enumerate(producers):
                producer.put(step, "a->b", part(plan, step, rank, 2))
            got = Batch.concat([consumer.get(step, "a->b") for consumer in consumers])
            assert sorted(got.row_ids) == list(range((step - 1) * 16, step * 16))


def test_every_byte_between_hosts_is_encrypted(tmp_path: Path):
    """Nobody without a certificate gets an answer at any port of the gang."""
    plan = two_stages((1, 1), (1, 1), tls=True)
    with in_process(plan, tmp_path) as gang:
        for host, ports in gang.ready.items():
            shown = subprocess.run(
                [sys.executable, "-c", _PLAIN, str(ports["port"])],
                capture_output=True,
                text=True,
                timeout=TEST_TIMEOUT_SECONDS,
            )
            assert shown.stdout.strip() == "FlightUnavailableError", host


_PLAIN = """
import sys, pyarrow.flight as flight
with flight.FlightClient(f"grpc+tcp://127.0.0.1:{sys.argv[1]}") as client:
    try:
        list(client.do_action(flight.Action("ask", b""), flight.FlightCallOptions(timeout=10.0)))
    except flight.FlightError as error:
        print(type(error).__name__)
"""


@contextmanager
def stranger(gang: Gang, certificates: Path) -> Iterator[BufferClient]:
    """A second data buffer of host train-0, in all but its certificates one of the gang, and a worker of it."""
    socket = gang.directory / "stranger.sock"
    environment = gang.environment("train", 0) | {
        "RLJOB_BUFFER": str(socket),
        "RLJOB_TLS_DIR": str(certificates / "train-0"),
    }
    worker = Identity(TOKEN, 1, gang.plan.hash(), "train", 0, rank=0)
    with serve_buffer(settings_from(environment)), closing(BufferClient(socket, worker)) as client:
        yield client


@pytest.mark.parametrize(
    "attempt, authority", [(0, "'rljob testing attempt 0'"), (1, "another authority of that name")]
)
def test_a_data_buffer_with_certificates_of_another_attempt_gets_no_rows_and_uses_none_up(
    tmp_path: Path, attempt: int, authority: str
):
    plan = two_stages((1, 1), (1, 1), tls=True)
    with in_process(plan, tmp_path) as gang:
        gang.client("rollout", 0).put(1, "a->b", part(plan, 1, 0, 1))
        foreign = certificates_of(plan, tmp_path / "foreign", attempt)
        words = f"host rollout-0 shows a certificate that was issued by 'rljob testing attempt 1', .* has .*{authority}"
        with pytest.raises(PeerLost, match=words), stranger(gang, foreign) as reader:
            reader.get(1, "a->b")
        # a reader of a part gives it back; here it is still whole
        assert same(gang.client("train", 0).get(1, "a->b"), part(plan, 1, 0, 1).select(COLUMNS))


def test_what_is_left_of_an_attempt_does_not_get_into_the_next(tmp_path: Path):
    """A host dies, and its place is taken by that of the next attempt, while another one goes on."""
    plan = two_stages((1, 1), (1, 1), tls=True)
    with warm_processes(plan, tmp_path, RLJOB_BUFFER_RETRY_SECONDS="2") as gang:
        reader = gang.client("train", 0)
        gang.client("rollout", 0).put(1, "a->b", part(plan, 1, 0, 1))
        assert len(reader.get(1, "a->b")) == 16
        gang.processes["rollout-0"].kill()
        gang.processes["rollout-0"].wait()
        issue_here(plan, 2, tmp_path / "next")
        port, place = str(gang.ready["rollout-0"]["port"]), str(tmp_path / "next" / "rollout-0")
        again = BufferProcess(
            gang, "rollout", 0, RLJOB_ATTEMPT="2", RLJOB_TLS_DIR=place, RLJOB_BUFFER_PORT=port, RLJOB_LISTEN="127.0.0.1"
        )
        gang.processes["again"] = again
        assert json.loads(again.stdout.readline())["port"] == int(port)
        words = "host rollout-0 shows a certificate that was issued by 'rljob testing attempt 2', and this attempt has"
        with pytest.raises(PeerLost, match=words):
            reader.get(2, "a->b", deadline_seconds=TEST_TIMEOUT_SECONDS)


def started(gang: Gang, **more: str) -> tuple[int, str]:
    """Exit code of a data buffer that cannot start, and what it says."""
    environment = gang.environment("train", 0) | more
    ended = run_warm("rljob_worker.databuffer", environment=environment, timeout=TEST_TIMEOUT_SECONDS)
    return ended.returncode, ended.stderr


def test_a_data_buffer_does_not_start_with_certificates_it_cannot_use(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), tls=True)
    gang = Gang(plan, tmp_path)
    gang.write_files()
    code, words = started(gang, RLJOB_TLS_DIR="")
    assert code == 64 and words == "data buffer: RLJOB_TLS_DIR is not set; the supervisor or the operator sets it\n"
    code, words = started(gang, RLJOB_TLS_DIR=str(tmp_path / "nowhere"))
    assert code == 64 and f"{tmp_path / 'nowhere' / 'ca.crt'} cannot be read: No such file or directory" in words
    code, words = started(gang, RLJOB_TLS_DIR=str(tmp_path / "tls" / "rollout-0"))
    assert code == 64 and "is for rollout-0, 127.0.0.1, and not for train-0" in words
    old = certificates_of(plan, tmp_path / "old", ago=timedelta(days=40))
    code, words = started(gang, RLJOB_TLS_DIR=str(old / "train-0"))
    # the next attempt gets new ones
    assert code == 75 and " expired at " in words and "a new attempt gets new ones" in words


def test_the_name_by_which_peers_call_a_host_has_to_be_in_its_certificate(tmp_path: Path):
    plan = two_stages((1, 1), (1, 1), tls=True)
    gang = Gang(plan, tmp_path)
    gang.write_files()
    environment = gang.environment("train", 0) | {"RLJOB_PEERS": "{job}-{group}-{host}.{job}.team.svc:8815"}
    with pytest.raises(InvalidJob, match="is for train-0, 127.0.0.1, and not for testing-train-0.testing.team.svc"):
        settings_from(environment)
