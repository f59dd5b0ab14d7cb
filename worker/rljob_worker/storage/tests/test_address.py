"""URLs of buckets and the objects they name."""

import pytest

from rljob_worker.storage.address import Address

KEYS = ["a.jsonl", "p/a.jsonl", "p/b.jsonl", "p/q/c.jsonl", "p/.hidden.jsonl", "p/x[1].jsonl", "pp/a.jsonl", "p/q/"]


@pytest.mark.parametrize(
    ("url", "prefix", "chosen"),
    [
        ("s3://b/p/*.jsonl", "p", ["p/a.jsonl", "p/b.jsonl", "p/x[1].jsonl"]),
        ("s3://b/p/[ab].jsonl", "p", ["p/a.jsonl", "p/b.jsonl"]),
        ("s3://b/p/[!a].jsonl", "p", ["p/b.jsonl"]),
        ("s3://b/p/[!a-c].jsonl", "p", []),
        ("s3://b/p/x[[]1].jsonl", "p", ["p/x[1].jsonl"]),
        ("s3://b/p/[a&&b].jsonl", "p", ["p/a.jsonl", "p/b.jsonl"]),
        ("s3://b/p/[z-a].jsonl", "p", []),
        ("s3://b/p/?.jsonl", "p", ["p/a.jsonl", "p/b.jsonl"]),
        ("s3://b/**/*.jsonl", "", ["a.jsonl", "p/a.jsonl", "p/b.jsonl", "p/q/c.jsonl", "p/x[1].jsonl", "pp/a.jsonl"]),
        ("s3://b/p*/a.jsonl", "", ["p/a.jsonl", "pp/a.jsonl"]),
        ("s3://b/p/**", "p", ["p/a.jsonl", "p/b.jsonl", "p/q/c.jsonl", "p/x[1].jsonl"]),
        # a folder is all below it, and not what only begins like it
        ("s3://b/p", "p", ["p/a.jsonl", "p/b.jsonl", "p/q/c.jsonl", "p/x[1].jsonl"]),
        ("s3://b/p/", "p", ["p/a.jsonl", "p/b.jsonl", "p/q/c.jsonl", "p/x[1].jsonl"]),
        ("az://account/container/p/q", "p/q", ["p/q/c.jsonl"]),
    ],
)
def test_which_objects_a_url_stands_for(url, prefix, chosen):
    address = Address.of(url)
    assert (address.prefix, address.chosen(reversed(KEYS))) == (prefix, chosen)


def test_the_parts_of_a_url():
    assert Address.of("s3://bucket/a/b.jsonl") == Address("s3", "s3://bucket", "a/b.jsonl")
    assert Address.of("az://account/container/a") == Address("az", "az://account/container", "a")
    assert Address.of("https://host:8080/a/b.jsonl").url_of("c") == "https://host:8080/c"
    assert Address.of("s3://bucket") == Address("s3", "s3://bucket", "")
