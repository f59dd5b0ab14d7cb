"""Data sets in stores other than S3: what they stand for, and that what was listed is what is read."""

import json

import pytest
from obstore.store import from_url

from rljob_worker.data.objects.store import Span, Store
from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.storage.address import Address
from rljob_worker.storage.tests.azure_server import azure_account
from rljob_worker.storage.tests.s3_server import s3_server

ONE, TWO = b'{"prompt": "one"}\n', b'{"prompt": "two, longer"}\n'


@pytest.fixture
def azure(monkeypatch):
    with azure_account("account", monkeypatch) as server:
        server.blobs = {"container/p/1.jsonl": ONE, "container/p/2.jsonl": TWO, "another/p/3.jsonl": b"{}"}
        yield server


def store(url):
    return Store(Address.of(url), patience(Clock(), 10.0))


@pytest.mark.parametrize("below", ["p", "p/*.jsonl", "p/2.jsonl", "**/2.jsonl"])
def test_azure_gives_what_it_lists_and_what_is_asked_for_by_name(azure, below):
    result = store(f"az://account/container/{below}")
    file = result.list_files()[-1]
    assert (file.path, file.size) == ("az://account/container/p/2.jsonl", len(TWO))
    assert result.read([Span(file, 0, 9), Span(file, 12, len(TWO))]) == [TWO[:9], TWO[12:]]


@pytest.mark.parametrize("below", ["p", "p/1.jsonl"])
def test_a_blob_that_was_replaced_by_one_as_long_is_named(azure, below):
    result = store(f"az://account/container/{below}")
    file = result.list_files()[0]
    azure.blobs["container/p/1.jsonl"] = ONE.replace(b"one", b"ONE")
    with pytest.raises(BadData, match=r"az://account/container/p/1.jsonl was replaced while the job read it"):
        result.read([Span(file, 0, 9)])


def test_azure_refuses_and_has_no_such_container(azure):
    with pytest.raises(InvalidJob, match=r"no such bucket \(404 Not Found \(ContainerNotFound"):
        store("az://account/contaner/p").list_files()
    azure.refuses = True
    with pytest.raises(InvalidJob, match=r"refuses: 403 Forbidden.* needs AZURE_STORAGE_ACCOUNT_KEY"):
        store("az://account/container/p").list_files()


def test_google_gives_what_it_lists(tmp_path, monkeypatch):
    """Google's store answers as S3 does to those who list and read; no credentials here."""
    with s3_server() as server:
        key = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        (tmp_path / "key.json").write_text(json.dumps(key | {"private_key_id": ""}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
        server.put("data", b"")
        server.publish("data/p/1.jsonl", ONE)
        client = from_url("gs://data", client_options={"allow_http": True})
        result = Store(Address.of("gs://data/p"), StoreRetryPolicy(10.0), client)
        (file,) = result.list_files()
        assert (file.path, file.size) == ("gs://data/p/1.jsonl", len(ONE))
        assert result.read([Span(file, 1, 9)]) == [ONE[1:9]]
        server.publish("data/p/1.jsonl", ONE.replace(b"one", b"ONE"))
        with pytest.raises(BadData, match="was replaced"):
            result.read([Span(file, 1, 9)])
