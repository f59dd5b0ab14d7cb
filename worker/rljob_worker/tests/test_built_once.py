"""What is built once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_worker.built_once import build_once, can_keep, short_digest


def test_a_thing_is_built_once(tmp_path: Path) -> None:
    built: list[Path] = []
    for _ in range(2):
        assert build_once(tmp_path / "thing-1", built.append) == tmp_path / "thing-1"
    assert len(built) == 1


def test_a_second_builder_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    built: list[Path] = []
    meeting = threading.Barrier(2)

    def build(folder: Path) -> None:
        built.append(folder)
        try:
            meeting.wait(timeout=0.5)  # a second builder that is let in comes here
        except threading.BrokenBarrierError:
            (folder / "whole").touch()

    with ThreadPoolExecutor() as pool:
        result = [item.result() for item in [pool.submit(build_once, tmp_path / "thing-1", build) for _ in range(2)]]
    assert len(built) == 1
    assert all((item / "whole").exists() for item in result)


def test_a_build_that_fails_is_built_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        build_once(tmp_path / "thing-1", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["thing-1.lock"]
    assert build_once(tmp_path / "thing-1", lambda folder: (folder / "whole").touch()).joinpath("whole").exists()


def test_what_a_killed_builder_left_goes_with_the_next_build(tmp_path: Path) -> None:
    (tmp_path / ".thing-1-x7").mkdir()
    build_once(tmp_path / "thing-1", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thing-1", "thing-1.lock"]


def test_what_is_there_and_not_whole_is_built_again_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "thing-1").mkdir()
    (tmp_path / "thing-1" / "rest").touch()
    built = build_once(
        tmp_path / "thing-1", lambda folder: (folder / "whole").touch(), lambda folder: (folder / "whole").exists()
    )
    assert [path.name for path in built.iterdir()] == ["whole"]


def test_nothing_can_be_kept_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert can_keep(tmp_path / "folder" / "thing-1")
    assert not can_keep(tmp_path / "file" / "folder" / "thing-1")


def test_parts_that_run_together_the_same_way_have_different_digests() -> None:
    assert short_digest("ab", "c") != short_digest("a", "bc")
