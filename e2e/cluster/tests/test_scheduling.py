"""Which tests of `make e2e` stay in one process."""

from pathlib import Path

import pytest

from e2e.scheduling import has_fixtures


@pytest.mark.parametrize(
    ("text", "scope", "shares"),
    [
        ('@pytest.fixture(scope="module")', "module", True),
        ('@pytest.fixture(scope="session")', "module", False),
        ("@pytest.fixture", "package", False),
    ],
)
def test_a_file_with_fixtures_of_its_own_is_kept_together(tmp_path: Path, text: str, scope: str, shares: bool) -> None:
    file = tmp_path / "conftest.py"
    file.write_text(text)
    assert has_fixtures(scope, file) == shares


def test_a_folder_without_fixtures_is_not(tmp_path: Path) -> None:
    assert not has_fixtures("package", tmp_path / "conftest.py")
