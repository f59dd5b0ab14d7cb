"""What becomes of rows between a put and a get: parts, cut into shares and pieces, assembled again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.arrow import columns_of_record, kinds_of_schema
from rljob_worker.databuffer.rows import segment, stream
from rljob_worker.databuffer.rows.arrangement import Header, arrange, write_rows
from rljob_worker.databuffer.rows.landing import Landing
from rljob_worker.databuffer.rows.tests.batches import batch_of, row_lists, same, stored
from rljob_worker.tests.indexed import Indexed


def assembled(sources, batch_bytes):
    """The share that some hosts' streams and this host's own selections come to."""
    remote, own = sources
    headers, bodies = [], []
    for selections in remote:
        header = stream.header_of(selections, "a->b")
        headers.append(Header.from_bytes(header.to_bytes(), header.kinds))
        bodies.append(list(stream.stream(selections, lambda seconds: None, batch_bytes).records))
    arrangement = arrange([*headers, *(Header.of(*selection) for selection in own)], "a->b")
    target = segment.views(np.zeros(arrangement.contents.num_bytes, np.uint8), 0, arrangement.contents)
    arrangement.write_index(target)
    for header, targets, body in zip(headers, arrangement.targets, bodies, strict=False):
        landing = Landing(header, target, targets, "rows of a host")
        for record, checksum in body:
            landing.take(record, checksum)
        landing.end()
    for targets, (views, rows) in zip(arrangement.targets[len(bodies) :], own, strict=True):
        write_rows(target, targets, views, rows)
    return target.as_batch()


@settings(max_examples=50)
@given(row_lists, st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False), st.integers(1, 600))
def test_every_share_is_the_rows_it_was_given_whoever_had_them(row_ids, num_parts, num_shares, random, batch_bytes):
    """Rows lie on parts and go to shares at random: groups are torn apart and put together again."""
    part_of = {row: random.randrange(num_parts) for row in row_ids}
    share_of = {row: random.randrange(num_shares) for row in row_ids}
    held = [[row for row in row_ids if part_of[row] == part] for part in range(num_parts)]
    parts = [stored(batch_of(rows)) for rows in held]
    for share in range(num_shares):
        chosen = [np.flatnonzero([share_of[row] == share for row in rows]) for rows in held]
        selections = list(zip(parts, chosen, strict=True))
        # two parts to a host; the last host is our own
        hosts = [selections[first : first + 2] for first in range(0, num_parts, 2)]
        got = assembled((hosts[:-1], hosts[-1]), batch_bytes)
        assert same(got, batch_of([row for row in row_ids if share_of[row] == share]))


def test_rows_of_megabytes_arrive():
    """Each is larger than a piece, and goes alone."""
    rng = np.random.default_rng(0)
    images = [rng.bytes(5 << 20) for _ in range(3)]
    batch = Batch.build([0, 1, 2], [0, 0, 1], {"image": Column.binary(images)})
    contents = segment.contents_of(batch)
    memory = np.zeros(contents.num_bytes, np.uint8)
    segment.write(memory, 0, contents, batch)
    views = segment.views(memory, 0, contents)
    got = assembled(([[(views, np.array([0, 2]))]], [(views, np.array([1]))]), stream.BATCH_BYTES)
    assert got["image"].to_list() == images


def test_long_rows_are_cut_and_placed_as_slices():
    """Neither end of a stream indexes values by itself: `gather` does it all."""
    columns = {"pixels": Column.from_lengths(np.arange(600).view(Indexed), [100] * 6)}
    batch = Batch.build(range(6), [row // 2 for row in range(6)], columns)
    rows, Indexed.fetched = np.array([0, 2, 5]), 0
    views = segment.Views(batch.index, columns)
    header = Header.of(views, rows)
    sent = stream.PartRows(views, rows).gather(0, 3)[1]["pixels"].values
    assert Indexed.fetched == 0
    arrangement = arrange([header], "a->b")
    target = segment.views(np.zeros(arrangement.contents.num_bytes, np.uint8), 0, arrangement.contents)
    arrangement.write_index(target)
    write_rows(target, arrangement.targets[0], views, rows)
    assert Indexed.fetched == 0
    expected = [*range(100), *range(200, 300), *range(500, 600)]
    assert sent.tolist() == target.columns["pixels"].values.tolist() == expected


def test_a_picture_of_a_group_is_sent_once_to_a_share():
    picture = Column.binary([bytes(1 << 20)]).per_group_at(np.array([0]), 8)
    views = stored_large(Batch.build(range(8), [0] * 8, {"picture": picture}))
    records = [record for record, _ in stream.stream([(views, np.arange(8))], lambda seconds: None, 1000).records]
    assert (
        sum(len(columns_of_record(record, kinds_of_schema(record.schema))[1]["picture"].values) for record in records)
        == 1 << 20
    )
    assert sum(record.nbytes for record in records) < (1 << 20) + 8 * 100
    # the last two rows alone take it along, all the same
    got = assembled(([[(views, np.array([6]))]], [(views, np.array([7]))]), 1000)
    assert got.columns["picture"].lengths.tolist() == [1 << 20, 0]
    assert got["picture"].lengths.tolist() == [1 << 20, 1 << 20]


def stored_large(batch):
    contents = segment.contents_of(batch)
    memory = np.zeros(contents.num_bytes, np.uint8)
    segment.write(memory, 0, contents, batch)
    return segment.views(memory, 0, contents)
