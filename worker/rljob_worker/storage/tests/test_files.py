"""Atomic writes and errors of reads."""

import pytest

from rljob_worker.errors import StorageError
from rljob_worker.storage.files import read_if_there, write_atomically


def test_a_reader_sees_the_old_text_or_the_new_one(tmp_path):
    path = tmp_path / "attempt"
    write_atomically(path, "old text")
    with path.open("rb", buffering=0) as reader:
        assert reader.read(4) == b"old "
        write_atomically(path, "NEW TEXT")
        assert reader.read() == b"text"
    assert path.read_text() == "NEW TEXT"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_a_storage_error_with_place_and_reason(tmp_path):
    path = tmp_path / "nowhere" / "attempt"
    with pytest.raises(StorageError, match=f"cannot write {path}: No such file or directory; free space"):
        write_atomically(path, "1")


def test_a_file_that_is_not_there_has_no_text_and_one_that_cannot_be_read_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("text")
    assert read_if_there(tmp_path / "file") == "text"
    assert read_if_there(tmp_path / "nothing") is None
    assert read_if_there(tmp_path / "file" / "below a file") is None
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}: Is a directory; mend the storage"):
        read_if_there(tmp_path)
