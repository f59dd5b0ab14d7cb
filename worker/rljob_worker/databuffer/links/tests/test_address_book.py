"""Addresses of data buffers, and what is wrong with a book that does not have them."""

import json
from pathlib import Path

import pytest

from rljob_worker.databuffer.links.address_book import AddressBook
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.errors import InvalidJob, StorageError


def test_a_template_names_every_host_and_says_nothing_of_who_lives():
    book = AddressBook("{job}-{group}-{host}.{job}.testing.svc:5000", "tiny")
    assert book.find(Host("rollout", 3)) == "tiny-rollout-3.tiny.testing.svc:5000"
    assert not book.lists_the_living


@pytest.mark.parametrize("template", ["{pod}:5000", "{}:5000", "{host", "{host.name}:5000"])
def test_a_template_that_is_none_is_refused_by_name(template: str):
    with pytest.raises(
        InvalidJob, match="RLJOB_PEERS .* is not a template of addresses: .*may name {job}, {group}, {host"
    ):
        AddressBook(template, "tiny").find(Host("rollout", 0))


def test_a_file_may_appear_late_and_be_replaced(tmp_path: Path):
    path = tmp_path / "peers.json"
    book = AddressBook(str(path), "tiny")
    assert book.find(Host("rollout", 1)) is None and not book.lists_the_living
    path.write_text(json.dumps({"rollout": ["127.0.0.1:1", "127.0.0.1:65535"]}))
    assert book.find(Host("rollout", 1)) == "127.0.0.1:65535" and book.lists_the_living
    new = tmp_path / "peers.json.new"
    new.write_text(json.dumps({"rollout": ["127.0.0.1:2", "127.0.0.1:65535"]}))
    new.rename(path)
    assert book.find(Host("rollout", 0)) == "127.0.0.1:2"
    path.unlink()
    assert book.find(Host("rollout", 0)) == "127.0.0.1:2"


def test_a_host_that_is_not_there_now_has_no_address(tmp_path: Path):
    book = tmp_path / "book.json"
    book.write_text('{"train": [null, "127.0.0.1:2"]}')
    addresses = AddressBook(str(book), "testing")
    assert [addresses.find(Host("train", index)) for index in (0, 1)] == [None, "127.0.0.1:2"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        ("[]", "is not an object of lists by group"),
        ("{}", "no address of host train-1: group train is not in it, only nothing"),
        ('{"b": [], "a": []}', "group train is not in it, only a, b"),
        ('{"train": "127.0.0.1:1"}', "what it has for group train is not a list"),
        ('{"train": ["127.0.0.1:1"]}', "its list for group train has 1 hosts"),
        ('{"train": ["127.0.0.1:1", 7]}', "7 is not host:port"),
        ('{"train": ["127.0.0.1:1", "127.0.0.1"]}', '"127.0.0.1" is not host:port'),
        ('{"train": ["127.0.0.1:1", ":80"]}', '":80" is not host:port'),
        ('{"train": ["127.0.0.1:1", "a:0"]}', '"a:0" is not host:port'),
        ('{"train": ["127.0.0.1:1", "a:65536"]}', '"a:65536" is not host:port'),
        ('{"train": ["127.0.0.1:1", "a:-1"]}', '"a:-1" is not host:port'),
        ('{"train": ["127.0.0.1:1", "a:\\u0663"]}', "is not host:port"),
    ],
)
def test_a_malformed_book_is_refused_naming_file_host_and_what_is_missing(
    tmp_path: Path, text: str | bytes, words: str
):
    path = tmp_path / "peers.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidJob) as caught:
        AddressBook(str(path), "tiny").find(Host("train", 1))
    assert words in str(caught.value) and f"the address book {path}" in str(caught.value)
    assert "write one list of host:port per worker group" in str(caught.value)


def test_a_book_that_cannot_be_read_is_a_matter_of_storage(tmp_path: Path):
    path = tmp_path / "peers.json"
    path.mkdir()
    with pytest.raises(StorageError, match="the address book .*peers.json cannot be read: .*directory"):
        AddressBook(str(path), "tiny").find(Host("train", 1))
