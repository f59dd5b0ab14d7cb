"""Files of places: reserved for real, mapped side by side, and gone with who made them."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_worker.databuffer.store.segment_files import (
    ARENA,
    PAGE_BYTES,
    SPILL,
    Allocator,
    FileKind,
    created,
    mapped,
    rounded,
    start_of_spill,
)
from rljob_worker.errors import StorageError

MIB = 1 << 20
NOBODY = 65534

_MAPS = """
import resource, sys
from pathlib import Path
from rljob_worker.databuffer.store.segment_files import SegmentFile, mapped
resource.setrlimit(getattr(resource, "RLIMIT_" + sys.argv[2]), (4 << 30, 4 << 30))
places = [SegmentFile(Path(sys.argv[1]), 1 << 40)]
written, read = mapped(places, writable=True), mapped(places, writable=False)
written[-1] = 7
print(written[-1], read[-1])
"""

PAGES = 32


@contextlib.contextmanager
def small_disk(at: Path, num_bytes: int, *options: str) -> Iterator[Path]:
    """A file system of its own."""
    at.mkdir()
    size = ",".join((f"size={num_bytes}", *options))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", at], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def test_places_lie_side_by_side_from_page_to_page(tmp_path: Path):
    with created(ARENA, tmp_path, 5000) as arena, created(SPILL, tmp_path, 9000) as spill:
        written, read = mapped([arena, spill], writable=True), mapped([arena, spill], writable=False)
        assert start_of_spill(5000) == 8192 and len(written) == len(read) == 8192 + 12288
        written[4990:5000], written[8192:8202] = 7, 9
        assert read[4990:5000].tolist() == [7] * 10 and read[8192:8202].tolist() == [9] * 10
        assert arena.path.read_bytes()[-10:] == b"\x07" * 10 and spill.path.read_bytes()[:10] == b"\x09" * 10
        with pytest.raises(ValueError, match="read-only"):
            read[0] = 1
    assert list(tmp_path.iterdir()) == []


def test_a_view_keeps_what_is_mapped(tmp_path: Path):
    with created(SPILL, tmp_path, 4096) as spill:
        last = mapped([spill], writable=True)[4095:]
        last[:] = 5
    assert last.tolist() == [5]


def test_what_is_mapped_is_no_memory_of_the_process_that_maps_it(tmp_path: Path):
    """Where a system or a user bounds what processes may have of their own, as on many shared machines."""
    place = tmp_path / "spill"
    with place.open("wb") as file:
        file.truncate(1 << 40)
    done = mapped_by_another(place, "DATA")
    assert done.stdout == "7 7\n", done.stderr
    done = mapped_by_another(place, "AS")
    assert "StorageError: cannot map 1,099,511,627,776 bytes of shared memory and disk: Cannot alloc" in done.stderr


def mapped_by_another(place: Path, limit: str) -> "subprocess.CompletedProcess[str]":
    """Both ways, by a process with a resource limited to 4 GiB."""
    return subprocess.run([sys.executable, "-c", _MAPS, str(place), limit], capture_output=True, text=True)


def test_room_that_was_reserved_is_there_however_full_the_disk_becomes(tmp_path: Path):
    with small_disk(tmp_path / "disk", 4 * MIB) as disk, created(SPILL, disk, 2 * MIB) as spill:
        with pytest.raises(OSError, match="No space left"):
            (disk / "others").write_bytes(bytes(3 * MIB))
        memory = mapped([spill], writable=True)
        memory[:] = np.arange(2 * MIB) % 251
        assert spill.path.read_bytes() == memory.tobytes()
        del memory


def test_a_disk_that_is_too_small_is_told_with_the_sizes_and_left_as_it_was(tmp_path: Path):
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        with (
            pytest.raises(
                StorageError,
                match=r"cannot reserve 3,145,728 bytes for its spill file in .*: No space left on "
                r"device, [12],\d{3},\d{3} bytes are free; free the disk, lower dataBuffer\.spill\.limit or choose",
            ),
            created(SPILL, disk, 3 * MIB),
        ):
            pass
        assert list(disk.iterdir()) == []


def test_a_directory_that_is_read_only_is_named(tmp_path: Path):
    with (
        small_disk(tmp_path / "disk", MIB, "ro") as disk,
        pytest.raises(
            StorageError, match=r"cannot create its spill file in .*/disk: Read-only file system; dataBuffer"
        ),
        created(SPILL, disk, 4096),
    ):
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            SPILL,
            r"its spill file in .*/absent: No such file or directory; dataBuffer\.spill needs a directory on local",
        ),
        (ARENA, r"its arena in .*/absent: No such file or directory; mount a memory-backed volume"),
    ],
)
def test_a_directory_that_is_not_there_is_named(tmp_path: Path, kind: FileKind, words: str):
    with pytest.raises(StorageError, match=words), created(kind, tmp_path / "absent", 4096):
        pass


def test_a_file_system_without_locks_is_named_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As Lustre that was mounted without them."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    words = r"cannot lock its spill file in .*: Function not implemented; dataBuffer\.spill needs a directory on local"
    with pytest.raises(StorageError, match=words), created(SPILL, tmp_path, 4096):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_that_cannot_be_removed_does_not_hide_what_is_wrong_with_the_directory():
    """A killed data buffer left it, and then the directory became one that is only read."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    with tempfile.TemporaryDirectory() as name:
        disk = Path(name)
        left = disk / f"{SPILL.prefix}killed"
        left.write_bytes(b"rows")
        os.chown(left, NOBODY, NOBODY)
        disk.chmod(0o755)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(StorageError, match="cannot create its spill file in .*: Permission denied; dataBuffer"):
                created(SPILL, disk, 4096).__enter__()
        finally:
            os.seteuid(0)
        assert left.exists()


def test_a_file_system_that_reserves_nothing_is_refused(tmp_path: Path):
    """As ramfs, which has no size at all."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        with (
            pytest.raises(
                StorageError, match="cannot reserve room for the data buffer's spill file.* as ext4, XFS and"
            ),
            created(SPILL, disk, 4096),
        ):
            pass
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_leftovers_are_files_of_the_kind_that_nobody_holds(tmp_path: Path):
    (tmp_path / f"{SPILL.prefix}killed").write_bytes(b"rows")
    (tmp_path / f"{ARENA.prefix}another").write_bytes(b"rows")
    (tmp_path / "users").write_text("kept")
    with created(SPILL, tmp_path, 4096) as first, created(SPILL, tmp_path, 4096) as second:
        assert {path.name for path in tmp_path.iterdir()} == {
            first.path.name,
            second.path.name,
            f"{ARENA.prefix}another",
            "users",
        }


def test_first_fit_by_hand():
    arena = Allocator(10 * PAGE_BYTES)
    first, second, third = (arena.allocate(3 * PAGE_BYTES) for _ in range(3))
    assert (first, second, third) == (0, 3 * PAGE_BYTES, 6 * PAGE_BYTES)
    assert arena.allocate(2 * PAGE_BYTES) is None
    arena.free(0)
    arena.free(3 * PAGE_BYTES)
    assert arena.largest_free == 6 * PAGE_BYTES  # joined
    assert arena.allocate(4 * PAGE_BYTES) == 0
    assert arena.allocate(1) == 4 * PAGE_BYTES  # a byte takes a page


class Leases(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.arena = Allocator(PAGES * PAGE_BYTES)
        self.taken: dict[int, int] = {}

    @rule(pages=st.integers(1, PAGES), odd=st.integers(0, PAGE_BYTES - 1))
    def allocate(self, pages, odd):
        size = pages * PAGE_BYTES - odd
        offset = self.arena.allocate(size)
        if offset is None:
            assert self.arena.largest_free < rounded(size)
        else:
            self.taken[offset] = rounded(size)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[offset]
        self.arena.free(offset)

    @invariant()
    def ranges_are_apart_and_add_up(self):
        ends = 0
        for offset, length in sorted(self.taken.items()):
            assert offset >= ends and offset % PAGE_BYTES == 0
            ends = offset + length
        assert ends <= PAGES * PAGE_BYTES
        assert self.arena.used == sum(self.taken.values())
        if not self.taken:
            assert self.arena.largest_free == PAGES * PAGE_BYTES


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=30)
