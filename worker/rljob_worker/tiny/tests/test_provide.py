"""The tiny model from a cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from rljob_worker.tiny.__main__ import main
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.provide import cache_folder, copy, provide
from rljob_worker.tiny.recipe import quick
from rljob_worker.tiny.seal import SEAL, holds

UNTRAINED = quick(steps=0)
ARGUMENTS = ("--quick", "--steps", "0")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    make_model(UNTRAINED, directory)
    return directory


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache; returns where UNTRAINED would be kept in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder(UNTRAINED)


def test_made_once_and_taken_from_there_by_a_second_directory(cache, tmp_path, capsys):
    for name in ("one", "two", "two"):
        main([*ARGUMENTS, "--out", str(tmp_path / name)])
    out = capsys.readouterr().out
    assert out.count("greedy accuracy") == 1
    assert out.splitlines()[-1] == f"{tmp_path}/two is up to date"
    assert holds(tmp_path / "one", UNTRAINED) and holds(tmp_path / "two", UNTRAINED)


def test_what_another_recipe_made_is_not_taken(made):
    assert holds(made, UNTRAINED)
    assert not holds(made, quick(seed=1, steps=0))


def test_what_is_kept_needs_no_torch(made, cache, tmp_path):
    copy(made, cache)
    code = (
        "import sys; from rljob_worker.tiny.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, *ARGUMENTS, "--out", str(tmp_path / "out")], check=True)
    assert holds(tmp_path / "out", UNTRAINED)


def test_a_kept_file_that_has_changed_is_never_used(made, cache, tmp_path):
    copy(made, cache)
    weights = bytearray((cache / "model" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (cache / "model" / "model.safetensors").write_bytes(weights)
    provide(UNTRAINED, tmp_path / "out")
    assert holds(tmp_path / "out", UNTRAINED) and holds(cache, UNTRAINED)
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() != weights


def test_a_directory_that_lost_a_file_gets_it_again(made, cache, tmp_path):
    for place in (cache, tmp_path / "out"):
        copy(made, place)
    (tmp_path / "out" / "validation.parquet").unlink()
    assert provide(UNTRAINED, tmp_path / "out")
    assert (tmp_path / "out" / "validation.parquet").exists()


@pytest.mark.parametrize("seal", [b"", b"[]", b"{}", b"\xff", b'{"version": 1}'])
def test_a_seal_that_says_nothing_seals_nothing(seal, made, tmp_path):
    copy(made, tmp_path)
    (tmp_path / SEAL).write_bytes(seal)
    assert not holds(tmp_path, UNTRAINED)


def test_a_copy_that_is_cut_off_has_no_seal(made, tmp_path):
    copy(made, tmp_path / "kept")
    copy(made, tmp_path / "out")
    (tmp_path / "kept" / "validation.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        copy(tmp_path / "kept", tmp_path / "out")
    assert not (tmp_path / "out" / SEAL).exists()


def test_where_nothing_can_be_kept_the_model_is_made_in_place(tmp_path, monkeypatch, capsys):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert provide(UNTRAINED, tmp_path / "out")
    assert holds(tmp_path / "out", UNTRAINED)
    assert "cannot be written: making the model in" in capsys.readouterr().out
