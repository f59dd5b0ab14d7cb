"""When an image is built again."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.images.builders import build_arguments, build_contexts, buildctl_contexts
from e2e.cluster.images.image_recipes import CHECKOUT, RECIPES, WITH_VLLM, ImageRecipe

ALL = (*RECIPES, WITH_VLLM)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path in (".dockerignore", "pyproject.toml", "package/code.py", "package/tests/test_code.py", "Dockerfile"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def key(checkout: Path, base: str = "python-1") -> str:
    sources = ("pyproject.toml", "package")
    return ImageRecipe("image", checkout / "Dockerfile", sources, checkout=checkout).key(base)


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


def test_another_argument_changes_the_key(checkout: Path) -> None:
    recipe = ImageRecipe("image", checkout / "Dockerfile", (), checkout=checkout, arguments=("PACKAGES=a",))
    assert recipe.key("python-1") != replace(recipe, arguments=("PACKAGES=b",)).key("python-1")


def test_every_recipe_has_its_dockerfile_and_its_sources() -> None:
    for recipe in ALL:
        assert recipe.dockerfile.is_file()
        assert recipe.files(), recipe.image


def test_what_a_dockerfile_copies_is_let_in_and_changes_the_key() -> None:
    let_in = [line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for recipe in ALL:
        for path in copied(recipe):
            assert any(overlap(path, item) for item in let_in), f"{recipe.image}: .dockerignore leaves out {path}"
            assert any(overlap(path, source) for source in recipe.sources), (
                f"{recipe.image}: its key does not see {path}"
            )


def copied(recipe: ImageRecipe) -> list[str]:
    """What it takes from the checkout, not from another stage."""
    text = recipe.dockerfile.read_text()
    (*_, chosen) = re.findall(r"^ARG (PACKAGES=.+)$", text, re.M) + list(recipe.arguments) or ["PACKAGES="]
    text = text.replace("${PACKAGES}", chosen.removeprefix("PACKAGES="))
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("COPY ")]
    return [path for words in lines if not words[0].startswith("--from") for path in words[:-1]]


def overlap(path: str, other: str) -> bool:
    """Whether one is the other or a folder around it; `examples/*.py` counts as its folder."""
    first, second = Path(path.partition("/*")[0]), Path(other.partition("/*")[0])
    return first.is_relative_to(second) or second.is_relative_to(first)


def test_a_wheel_is_built_with_every_file_that_its_metadata_names() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    for recipe in ALL:
        assert {project["readme"], *project["license-files"]} <= set(copied(recipe)), recipe.image


def test_every_dockerfile_takes_its_base_runs_as_a_number_and_pulls_no_frontend() -> None:
    dockerfiles = sorted(RECIPES[0].dockerfile.parent.glob("*.Dockerfile"))
    assert len(dockerfiles) == 5
    bases = set()
    for path in dockerfiles:
        lines = path.read_text().splitlines()
        (base,) = (line for line in lines if line.startswith("ARG BASE_IMAGE="))
        assert re.fullmatch(r"ARG BASE_IMAGE=python:3\.11\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base), path.name
        bases.add(base)
        assert [line for line in lines if line.startswith("USER ")][-1] == "USER 65532:65532", path.name
        assert not any(line.startswith("# syntax=") for line in lines), path.name
    assert len(bases) == 1, "images of one release have one base"


def test_a_context_that_a_builder_does_not_give_is_an_empty_stage() -> None:
    lines = WITH_VLLM.dockerfile.read_text().splitlines()
    assert "FROM scratch AS tiny" in lines
    assert any(line.startswith("COPY --from=tiny ") for line in lines)


def test_builders_get_the_target_of_a_dockerfile_with_several_images() -> None:
    assert build_arguments(WITH_VLLM.arguments) == ["--build-arg", "PACKAGES=worker-vllm-cpu"]
    assert WITH_VLLM.dockerfile in {recipe.dockerfile for recipe in RECIPES}


def test_builders_get_the_contexts_of_a_dockerfile() -> None:
    contexts = {"tiny": Path("/kept/1"), "more": Path("/kept/2")}
    assert build_contexts(contexts) == ["--build-context", "tiny=/kept/1", "--build-context", "more=/kept/2"]
    assert buildctl_contexts({"tiny": Path("/kept/1")}) == [
        *("--local", "tiny=/kept/1"),
        *("--opt", "context:tiny=local:tiny"),
    ]
