"""Tests of packing a folder of modules into a ConfigMap."""

import base64

import pytest

from rljob.errors import ClusterError
from rljob.packing import MAX_BYTES, config_map, owned_by, packed_modules
from rljob.tests.builders import body


def test_a_folders_modules_are_packed_and_go_with_their_job(tmp_path):
    (tmp_path / "rewards.py").write_text("x = 'ä'")
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "__pycache__").mkdir()
    modules = packed_modules(tmp_path)
    made = config_map("small-code-1", "team", modules)
    assert {name: base64.b64decode(text).decode() for name, text in made["binaryData"].items()} == {
        "rewards.py": "x = 'ä'"
    }
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "small", "uid": "uid-1"}
    assert made["metadata"] == {"name": "small-code-1", "namespace": "team"} and owned_by(body()) == owner


def test_what_a_config_map_cannot_carry_is_refused_with_another_way(tmp_path):
    with pytest.raises(ClusterError, match="has no Python files"):
        packed_modules(tmp_path)
    with pytest.raises(ClusterError, match="is not a folder"):
        packed_modules(tmp_path / "absent")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("")
    with pytest.raises(ClusterError, match=r"has packages \(tools\).*persistentVolumeClaim"):
        packed_modules(tmp_path)


@pytest.mark.parametrize(("more", "fits"), [(-1, True), (0, True), (1, False)])
def test_a_config_map_is_full_at_one_mebibyte(tmp_path, more, fits):
    (tmp_path / "a.py").write_bytes(b"#" * (MAX_BYTES - len("a.py") + more))
    if fits:
        assert list(packed_modules(tmp_path)) == ["a.py"]
    else:
        with pytest.raises(ClusterError, match=r"1,048,577 bytes of Python, most of them in a\.py"):
            packed_modules(tmp_path)
