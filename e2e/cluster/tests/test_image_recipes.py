"""When an image is built again."""

from pathlib import Path

import pytest

from e2e.cluster.image_recipes import RECIPES, ImageRecipe


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path in (".dockerignore", "pyproject.toml", "package/code.py", "package/tests/test_code.py", "Dockerfile"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def key(checkout: Path, base: str = "python-1") -> str:
    return ImageRecipe("image", checkout / "Dockerfile", ("pyproject.toml", "package")).key(base, checkout)


@pytest.mark.parametrize("path", [".dockerignore", "pyproject.toml", "package/code.py", "Dockerfile", "package/new.py"])
def test_a_change_of_anything_that_goes_in_changes_the_key(checkout: Path, path: str) -> None:
    before = key(checkout)
    (checkout / path).write_text("other")
    assert key(checkout) != before


def test_a_file_that_moves_changes_the_key(checkout: Path) -> None:
    before = key(checkout)
    (checkout / "package/code.py").rename(checkout / "package/moved.py")
    assert key(checkout) != before


def test_another_base_changes_the_key(checkout: Path) -> None:
    assert key(checkout, "python-2") != key(checkout, "python-1")


@pytest.mark.parametrize("path", ["package/tests/test_code.py", "package/__pycache__/code.pyc", "package/conftest.py"])
def test_tests_and_compiled_files_do_not(checkout: Path, path: str) -> None:
    before = key(checkout)
    (checkout / path).parent.mkdir(exist_ok=True)
    (checkout / path).write_text("other")
    assert key(checkout) == before


def test_every_recipe_has_its_dockerfile_and_its_sources() -> None:
    for recipe in RECIPES:
        assert recipe.dockerfile.is_file()
        assert recipe.files(recipe.dockerfile.parents[1]), recipe.image


def test_every_dockerfile_takes_its_base_runs_as_a_number_and_pulls_no_frontend() -> None:
    dockerfiles = sorted(RECIPES[0].dockerfile.parent.glob("*.Dockerfile"))
    assert len(dockerfiles) == 4
    for path in dockerfiles:
        lines = path.read_text().splitlines()
        assert "ARG BASE_IMAGE=python:3.11-slim" in lines, path.name
        assert [line for line in lines if line.startswith("USER ")][-1] == "USER 65532:65532", path.name
        assert not any(line.startswith("# syntax=") for line in lines), path.name
