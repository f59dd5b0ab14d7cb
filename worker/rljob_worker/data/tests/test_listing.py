"""Listings of data files, and the changes between two."""

from rljob_worker.data.listing import (
    DataFile,
    DataIdentity,
    changes,
    joined_identity,
    listing_from_json,
    listing_to_json,
    named_changes,
)

A, B = DataFile("s3://b/a", 10, '"1"'), DataFile("s3://b/b", 20, '"1"')


def test_equal_listings_have_no_changes_whatever_their_order():
    assert changes((A, B), (B, A)) == []


def test_every_change_is_reported():
    now = (DataFile("s3://b/a", 10, '"2"'), DataFile("s3://b/c", 1, '"1"'))
    assert changes((A, B), now) == [
        's3://b/a was written again ("1", now "2")',
        "s3://b/b is gone",
        "s3://b/c is new",
    ]
    assert changes((A,), (DataFile("s3://b/a", 12, '"2"'),)) == ["s3://b/a had 10 bytes and has 12"]


def test_of_many_changes_the_first_are_named():
    result = [f"{i} is new" for i in range(8)]
    assert named_changes(result) == "0 is new, 1 is new, 2 is new, 3 is new, 4 is new, and 3 more"
    assert named_changes(result[:5]) == "0 is new, 1 is new, 2 is new, 3 is new, 4 is new"


def test_a_listing_survives_json():
    assert listing_from_json(listing_to_json((A, B))) == (A, B)


def test_data_sets_of_several_policies_are_one_thing_to_a_checkpoint():
    one, other = DataIdentity("a", (A,)), DataIdentity("b", (A,))
    assert joined_identity([one]) == one and joined_identity([]) == DataIdentity()
    assert joined_identity([one, other]).files == (A,)
    assert len({joined_identity(item).fingerprint for item in ([one, other], [other, one], [one, one], [one])}) == 4
