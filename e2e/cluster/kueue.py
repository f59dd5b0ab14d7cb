"""Kueue, the job queue, on a cluster that is up: from its Go module, which carries its chart."""

import shutil
from pathlib import Path

from e2e.cluster.cluster import KubeCluster
from e2e.cluster.go_programs import GO_PROGRAMS, module_folder, program
from e2e.cluster.images.archive import write_image
from rljob_worker.built_once import build_once, cache_root

REPOSITORY, TAG = "localhost/kueue", "1"
NAMESPACE = "kueue-system"


def install(cluster: KubeCluster) -> None:
    """Returns when Kueue's controller and webhooks answer."""
    cluster.load_archive(image_archive())
    image = {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"}
    settings = [f"--set=controllerManager.manager.image.{key}={value}" for key, value in image.items()]
    chart = module_folder("kueue") / "charts/kueue"
    where = ("-n", NAMESPACE, "--create-namespace", "--wait", "--timeout=180s")
    cluster.helm("install", "kueue", chart, *where, *settings)


def uninstall(cluster: KubeCluster) -> None:
    cluster.helm("uninstall", "kueue", "-n", NAMESPACE, "--wait", "--timeout=180s")


def image_archive() -> Path:
    return build_once(cache_root() / "base-images" / GO_PROGRAMS["kueue"].key(), build_image) / "image.tar"


def build_image(folder: Path) -> None:
    root = folder / "root"
    root.mkdir()
    shutil.copy(program("kueue"), root / "manager")
    write_image(root, f"{REPOSITORY}:{TAG}", folder / "image.tar", {"Entrypoint": ["/manager"], "User": "65532:65532"})
    shutil.rmtree(root)
