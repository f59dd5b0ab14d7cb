"""A bucket as a place for files, on a real S3 server: what it holds, what is refused, and what is outlasted."""

import zlib

import pytest

from rljob_worker.storage.paths import delete_tree, storage_path
from rljob_worker.storage.store_errors import VersionConflict
from rljob_worker.storage.tests.s3_server import CONDITIONS, SLOW_DOWN, s3_bucket


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("runs", monkeypatch) as server:
        yield server


def test_a_text_without_a_scheme_is_a_path_of_the_disk(tmp_path):
    assert storage_path(str(tmp_path)) == tmp_path


def test_what_is_written_is_read_and_listed(s3):
    folder = storage_path("s3://runs/a/")
    (folder / "one.json").write_text("1")
    (folder / "step-1/two.bin").write_bytes(b"22")

    assert str(folder / "one.json") == "s3://runs/a/one.json"
    assert ((folder / "one.json").read_text(), (folder / "step-1/two.bin").stat().st_size) == ("1", 2)
    assert [path.name for path in folder.iterdir()] == ["one.json", "step-1"]
    assert [str(path) for path in folder.glob("step-*")] == ["s3://runs/a/step-1"]
    assert [path.relative_to(folder) for path in folder.rglob("*")] == ["one.json", "step-1/two.bin"]
    assert folder.sizes() == {"one.json": 1, "step-1/two.bin": 2}
    assert folder.is_dir() and not folder.is_file() and (folder / "one.json").is_file()
    assert not (folder / "three").exists()


def test_a_file_goes_in_parts_and_is_there_only_when_it_was_closed(s3):
    path = storage_path("s3://runs/big")
    block = bytes(range(256)) * (1 << 12)  # 1 MiB
    with path.open("wb") as file:
        for _ in range(20):  # more than one part of 16 MiB
            file.write(block)
        assert not path.exists()
        assert (file.tell(), file.crc32) == (20 << 20, zlib.crc32(block * 20))

    assert path.stat().st_size == 20 << 20
    with path.open("rb") as file:
        file.seek((19 << 20) + 5)
        assert file.read(3) == b"\5\6\7"


def test_what_was_handed_over_may_be_written_over(s3):
    path, buffer = storage_path("s3://runs/x"), bytearray(b"first")
    with path.open("wb") as file:
        file.write(buffer)
        buffer[:] = b"other"

    assert path.read_text() == "first"


def test_a_file_that_broke_off_never_becomes_an_object(s3):
    path = storage_path("s3://runs/big")
    with pytest.raises(RuntimeError), path.open("wb") as file:
        file.write(b"x" * (17 << 20))
        raise RuntimeError("the rank was killed")

    assert not path.exists()


def test_a_tree_goes_with_all_that_is_in_it_and_nothing_else(s3):
    folder = storage_path("s3://runs/a")
    for name in ("x", "y/z"):
        (folder / name).write_text("1")
    storage_path("s3://runs/ab").write_text("another")

    delete_tree(folder)
    delete_tree(folder)

    assert not folder.exists() and storage_path("s3://runs/ab").exists()


def test_only_one_of_two_creates_an_object_and_only_who_knows_its_version_changes_it(s3):
    bucket = storage_path("s3://runs/x").bucket
    version = bucket.put_if("x", b"mine", None)

    for body, known in ((b"yours", None), (b"yours", '"older"')):
        with pytest.raises(VersionConflict, match="somebody else"):
            bucket.put_if("x", body, known)
    bucket.put_if("x", b"mine again", version)
    bucket.delete(["x"])

    with pytest.raises(VersionConflict):
        bucket.put_if("x", b"withdrawn meanwhile", version)


def test_a_put_whose_answer_was_lost_is_no_conflict_with_itself(s3):
    bucket = storage_path("s3://runs/x").bucket
    version = bucket.put_if("x", b"mine", None)

    assert bucket.put_if("x", b"mine", None) == version


@pytest.mark.parametrize(
    ("lost", "known"), [((), True), (CONDITIONS, False), (CONDITIONS[:1], False), (CONDITIONS[1:], False)]
)
def test_a_store_without_conditional_puts_is_found_out_and_nothing_is_left_behind(s3, lost, known):
    s3.lose_conditions(lost)
    bucket = storage_path("s3://runs/a").bucket

    assert bucket.heeds_conditions("a/probe") is known
    assert list(bucket.objects("a")) == []


def test_a_store_that_answers_503_for_a_while_is_outlasted(s3):
    left = [SLOW_DOWN] * 4
    s3.fail = s3.fail_write = lambda request: left.pop() if left else None

    storage_path("s3://runs/x").write_text("1")

    assert (storage_path("s3://runs/x").read_text(), left) == ("1", [])


def test_a_store_that_never_answers_is_given_up_with_its_words(s3):
    s3.fail_write = lambda request: SLOW_DOWN

    with pytest.raises(OSError) as caught:
        storage_path("s3://runs/x", timeout_seconds=0.5).write_text("1")

    assert "503 Service Unavailable" in caught.value.strerror
    assert caught.value.filename == "s3://runs/x"


@pytest.mark.parametrize("size", [1, 17 << 20])
def test_wrong_credentials_say_what_the_environment_needs(s3, size):
    s3.require_credentials()

    def piece_by_piece():
        with storage_path("s3://runs/x").open("wb") as file:
            file.write(bytes(size))

    for write in (lambda: storage_path("s3://runs/x").write_text("1"), piece_by_piece):
        with pytest.raises(PermissionError, match="the store refuses: 403 Forbidden") as caught:
            write()
        assert "AWS_ACCESS_KEY_ID" in caught.value.strerror


def test_a_bucket_that_is_not_there_is_not_an_object_that_is_not_there(s3):
    place = storage_path("s3://other/x")

    with pytest.raises(FileNotFoundError):
        storage_path("s3://runs/x").read_text()
    for ask in (place.read_text, lambda: place.write_text("1")):
        with pytest.raises(OSError, match="no such bucket") as caught:
            ask()
        assert not isinstance(caught.value, FileNotFoundError)
