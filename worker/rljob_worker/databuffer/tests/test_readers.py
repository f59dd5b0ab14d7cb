"""Any Flight client with the job's token lists and reads what was put, and can do no more than that."""

import contextlib
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.flight as flight
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch.arrow import from_arrow
from rljob_worker.databuffer.rows.stream import PartRows
from rljob_worker.databuffer.rows.tests.batches import same
from rljob_worker.databuffer.server import flight as server
from rljob_worker.databuffer.server import readers
from rljob_worker.databuffer.tests.gang import TOKEN, Gang, in_process, part, two_stages
from rljob_worker.tests.waiting import wait_for

COLUMNS = ("ids", "score")
SHOWN = {"token": TOKEN, "attempt": "1"}
PART = ["a->b", "1", "0"]


def options(**shown: str) -> flight.FlightCallOptions:
    headers = [(f"x-rljob-{name}".encode(), value.encode()) for name, value in (SHOWN | shown).items() if value]
    return flight.FlightCallOptions(timeout=TEST_TIMEOUT_SECONDS, headers=headers)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    """Two producers of a host have put what nobody has read."""
    with in_process(two_stages((1, 2), (1, 1)), tmp_path) as gang:
        for rank in range(2):
            gang.client("rollout", rank).put(1, "a->b", part(gang.plan, 1, rank, 2))
        yield gang
        # the job goes on, no matter what a reader did
        assert same(gang.client("train", 0).get(1, "a->b"), part(gang.plan, 1, 0, 1).select(COLUMNS))


@contextlib.contextmanager
def reader(gang: Gang) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(f"grpc+tcp://127.0.0.1:{gang.ready['rollout-0']['port']}") as client:
        yield client


def ticket(client: flight.FlightClient, path: Sequence[str] = PART) -> flight.Ticket:
    return client.get_flight_info(flight.FlightDescriptor.for_path(*path), options()).endpoints[0].ticket


class RowByRow(PartRows):
    """Every row is a piece."""

    def cuts(self, batch_bytes: int = 1) -> list[tuple[int, int]]:
        return super().cuts(batch_bytes)


def refused_calls(gang: Gang, kind: str) -> float:
    port = gang.ready["rollout-0"]["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = f'rljob_buffer_refused_calls_total{{kind="{kind}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_an_edge_is_listed_and_read(gang: Gang):
    with reader(gang) as client:
        infos = list(client.list_flights(options=options(plan=gang.plan.hash())))
        assert [info.descriptor.path for info in infos] == [[b"a->b", b"1", b"0"], [b"a->b", b"1", b"1"]]
        for rank, info in enumerate(infos):
            result = client.do_get(info.endpoints[0].ticket, options()).read_all()
            assert result.schema == info.schema and result.num_rows == info.total_records
            expected = part(gang.plan, 1, rank, 2).select(COLUMNS)
            assert same(from_arrow(result.combine_chunks().to_batches()[0]), expected)
        assert list(client.list_flights(b"x->y", options())) == []
        assert ticket(client) == infos[0].endpoints[0].ticket


@pytest.mark.parametrize(
    ("lies", "kind", "words"),
    [
        ({"token": ""}, "Refused", "a call shows 0 values of x-rljob-token, not one"),
        ({"token": "guessed"}, "Refused", "a reader does not have the token of this job"),
        ({"attempt": "0"}, "Refused", "a reader is of attempt 0, this data buffer serves attempt 1"),
        ({"plan": "f" * 64}, "Refused", "a reader means plan ffffffffffff, this data buffer serves plan"),
    ],
)
def test_a_client_of_something_else_is_refused_by_name_and_counted(
    gang: Gang, lies: dict[str, str], kind: str, words: str
):
    with reader(gang) as client:
        before = refused_calls(gang, kind)
        for call in (
            lambda: list(client.list_flights(options=options(**lies))),
            lambda: client.do_get(flight.Ticket(b""), options(**lies)).read_all(),
        ):
            with pytest.raises(flight.FlightUnauthorizedError, match=words):
                call()
        assert refused_calls(gang, kind) == before + 2


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        (["x->y", "1", "0"], "OutOfOrder", "there is no edge 'x->y' in this job; its edges are a->b"),
        (["a->b", "2", "0"], "OutOfOrder", "part 0 of edge a->b, step 2 is not here: not put yet"),
        (["a->b", "1", "9"], "OutOfOrder", "part 9 of edge a->b, step 1 is not here"),
        (["a->b", "one", "0"], "Malformed", "is not an edge, a step and a part"),
        (["a->b"], "Malformed", "is not an edge, a step and a part"),
    ],
)
def test_what_is_not_here_is_refused_by_name_and_counted(gang: Gang, path: list[str], kind: str, words: str):
    with reader(gang) as client:
        with pytest.raises(flight.FlightServerError, match=words):
            ticket(client, path)
        assert refused_calls(gang, kind) == 1


def test_what_is_no_ticket_of_a_reader_is_refused_by_name(gang: Gang):
    with reader(gang) as client, pytest.raises(flight.FlightServerError, match="5 bytes are not a ticket of a reader"):
        client.do_get(flight.Ticket(b"rows!"), options()).read_all()


def test_a_reader_takes_no_action(gang: Gang):
    with reader(gang) as client, pytest.raises(flight.FlightUnauthorizedError, match="0 values of x-rljob-plan"):
        list(client.do_action(("deliver", b""), options()))


def test_readers_that_do_not_go_on_are_few(gang: Gang, monkeypatch: pytest.MonkeyPatch):
    """They stop at their first row."""
    reached, go_on = threading.Semaphore(0), threading.Event()
    taken = readers.rows_checksum

    def stops(*rows: object) -> bytes:
        reached.release()
        go_on.wait(TEST_TIMEOUT_SECONDS)
        return taken(*rows)  # type: ignore[arg-type]

    monkeypatch.setattr(readers, "rows_checksum", stops)
    monkeypatch.setattr(readers, "PartRows", RowByRow)
    with reader(gang) as client:
        wanted = ticket(client)
        slow = [client.do_get(wanted, options()) for _ in range(server.MAX_READERS)]
        for _ in slow:
            assert reached.acquire(timeout=TEST_TIMEOUT_SECONDS)
        for _ in range(3):
            with pytest.raises(flight.FlightServerError, match="readers: 4 streams are open, and more are not served"):
                client.do_get(wanted, options()).read_all()
        assert refused_calls(gang, "Away") == 3
        go_on.set()
        assert [item.read_all().num_rows for item in slow] == [8] * server.MAX_READERS

        def read() -> bool:
            with contextlib.suppress(flight.FlightServerError):  # the server has not seen yet that the others ended
                return client.do_get(wanted, options()).read_all().num_rows == 8
            return False

        assert wait_for(read)


def test_a_reader_ends_with_its_time(gang: Gang, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "READER_SECONDS", -1.0)
    with reader(gang) as client, pytest.raises(flight.FlightServerError, match="a reader may take -1 s"):
        client.do_get(ticket(client), options()).read_all()
    assert refused_calls(gang, "DeadlineExceeded") == 1


def test_rows_that_are_given_back_while_they_are_read_are_named(gang: Gang, monkeypatch: pytest.MonkeyPatch):
    taken = readers.rows_checksum

    def meanwhile(*rows: object) -> bytes:
        gang.client("train", 0).get(1, "a->b")
        gang.client("rollout", 0).drain()
        return taken(*rows)  # type: ignore[arg-type]

    monkeypatch.setattr(readers, "rows_checksum", meanwhile)
    monkeypatch.setattr(readers, "PartRows", RowByRow)
    with reader(gang) as client, pytest.raises(flight.FlightServerError, match="is not here: .* taken by all"):
        client.do_get(ticket(client), options()).read_all()
