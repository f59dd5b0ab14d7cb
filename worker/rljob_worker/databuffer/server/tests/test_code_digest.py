"""The digest of what a data buffer runs."""

from pathlib import Path

from rljob_worker.databuffer.server.code_digest import NUM_DIGITS, code_digest


def test_a_digest_is_of_names_and_contents_of_all_modules_but_tests(tmp_path: Path) -> None:
    (tmp_path / "room" / "tests").mkdir(parents=True)
    (tmp_path / "room" / "one.py").write_text("a = 1\n")
    before = code_digest([str(tmp_path)])
    (tmp_path / "room" / "tests" / "test_one.py").write_text("b = 1\n")
    (tmp_path / "room" / "one.md").write_text("words\n")
    assert code_digest([str(tmp_path)]) == before and len(before) == NUM_DIGITS
    (tmp_path / "room" / "one.py").write_text("a = 2\n")
    assert code_digest([str(tmp_path)]) != before
    (tmp_path / "room" / "one.py").rename(tmp_path / "room" / "two.py")
    (tmp_path / "room" / "two.py").write_text("a = 1\n")
    assert code_digest([str(tmp_path)]) != before
