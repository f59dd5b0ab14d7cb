"""Which mirror a base image comes from, and archives that containerd takes for images."""

import json
import tarfile
from pathlib import Path

from e2e.cluster.images.archive import write_image
from e2e.cluster.images.base_image import mirror_in

PARAGRAPHS = """Types: deb
URIs: https://mirror.example/security
Suites: bookworm-security

Types: deb
# a snapshot
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
"""


def test_the_mirror_is_that_of_the_main_suite() -> None:
    assert mirror_in(PARAGRAPHS) == "https://mirror.example/debian"


def test_the_one_line_form_with_options() -> None:
    sources = (
        "deb-src https://no.example bookworm main\ndeb [signed-by=/key] https://mirror.example/debian bookworm main\n"
    )
    assert mirror_in(sources) == "https://mirror.example/debian"


def test_sources_of_another_release_are_none() -> None:
    assert mirror_in("deb https://mirror.example/debian trixie main\n") is None


def test_an_image_archive_names_its_layer_and_its_config(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/pause").write_text("waits")
    write_image(tmp_path / "root", "localhost/pause:1", tmp_path / "image.tar", {"User": "65532"})
    with tarfile.open(tmp_path / "image.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        layer = archive.extractfile(manifest["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            assert "./pause" in files.getnames()
    assert manifest["RepoTags"] == ["localhost/pause:1"]
    assert config["config"]["User"] == "65532"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{manifest['Layers'][0].removesuffix('/layer.tar')}"]
