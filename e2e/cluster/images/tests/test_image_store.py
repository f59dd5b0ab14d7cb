"""Clones of a store: what they share, and how long it stays."""

import shutil
from pathlib import Path

from e2e.cluster.images.image_store import SNAPSHOTS, ImageStore

LAYER = "usr/lib/module.py"


def store_with_layers(folder: Path, *numbers: str) -> ImageStore:
    store = ImageStore(folder / "nodes")
    for number in numbers:
        file = store.root / SNAPSHOTS / number / "fs" / LAYER
        file.parent.mkdir(parents=True)
        (store.root / SNAPSHOTS / number / "work").mkdir()
        file.write_text(f"layer {number}")
    (store.root / "metadata").mkdir(parents=True)
    (store.root / "metadata/meta.db").write_text("images")
    return store


def layer(clone: Path, number: str) -> Path:
    return clone / SNAPSHOTS / number / "fs" / LAYER


def test_clones_share_layers_but_not_the_database(tmp_path: Path) -> None:
    store = store_with_layers(tmp_path, "1", "2")
    for name in ("a", "b"):
        store.clone(tmp_path / name)
    assert [layer(tmp_path / "b", number).read_text() for number in ("1", "2")] == ["layer 1", "layer 2"]
    inodes = {layer(root, "2").stat().st_ino for root in (tmp_path / "a", tmp_path / "b", store.root)}
    assert len(inodes) == 1
    (tmp_path / "a/metadata/meta.db").write_text("another")
    assert (store.root / "metadata/meta.db").read_text() == (tmp_path / "b/metadata/meta.db").read_text() == "images"
    assert list((tmp_path / "a" / SNAPSHOTS / "1/work").iterdir()) == []


def test_a_layer_that_the_store_dropped_stays_while_a_clone_holds_it(tmp_path: Path) -> None:
    store = store_with_layers(tmp_path, "1", "2")
    first, second = tmp_path / "first", tmp_path / "second"
    store.clone(first)
    shutil.rmtree(store.root / SNAPSHOTS / "1")
    store.clone(second)
    assert layer(first, "1").read_text() == "layer 1"
    assert sorted(path.name for path in (second / SNAPSHOTS).iterdir()) == ["2"]
    shutil.rmtree(first)
    store.clone(tmp_path / "third")
    assert len(list((store.folder / "layers").iterdir())) == 1


def test_a_layer_of_a_store_that_was_made_anew_is_not_taken_for_its_forerunner(tmp_path: Path) -> None:
    store = store_with_layers(tmp_path, "1")
    store.clone(tmp_path / "first")
    (store.root / SNAPSHOTS / "1").rename(tmp_path / "thrown-away")
    shutil.rmtree(store.root)
    store_with_layers(tmp_path, "1")
    layer(store.root, "1").write_text("anew")
    store.clone(tmp_path / "second")
    assert (layer(tmp_path / "first", "1").read_text(), layer(tmp_path / "second", "1").read_text()) == (
        "layer 1",
        "anew",
    )


def test_a_layer_that_was_linked_in_part_is_linked_again(tmp_path: Path) -> None:
    store = store_with_layers(tmp_path, "1")
    store.clone(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    (shared,) = (store.folder / "layers").iterdir()
    (shared / "in-use").unlink()
    (shared / "fs" / LAYER).unlink()
    store.clone(tmp_path / "second")
    assert layer(tmp_path / "second", "1").read_text() == "layer 1"
