"""PersistentVolumes of type hostPath behind claims, filled with the examples' model and data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster import KubeCluster
from e2e.cluster.waiting import wait_until

USER = 65532
WORKER_IMAGE = "localhost/rljob-worker-cpu:dev"
CLAIM = "storage"
_NAMESPACE = "e2e-storage"


class Storage:
    """Folders of this machine that every node sees."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster
        self._root = cluster.shared_folder / "storage"

    def seed(self) -> Path:
        """Take model and data out of the worker image."""
        folder = self._root / "seed"
        shutil.rmtree(self._root, ignore_errors=True)
        folder.mkdir(parents=True)
        self._cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
        self._cluster.apply(_copying_pod(folder))
        phase = ("-n", _NAMESPACE, "get", "pod", "seed", "-o", "jsonpath={.status.phase}")
        wait_until(lambda: self._cluster.kubectl(*phase) == "Succeeded", "model and data out of the image", 120)
        self._cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")
        return folder

    def claim(self, namespace: str, seed: Path) -> Path:
        """A bound claim called `storage`; returns the folder behind it."""
        folder = self._root / namespace
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(seed, folder)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
        for manifest in _volume_and_claim(namespace, folder):
            self._cluster.apply(manifest)
        return folder


def _copying_pod(folder: Path) -> dict[str, object]:
    container = {
        "name": "seed",
        "image": WORKER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", "-r", "/workspace/.", "/seed"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "seed", "mountPath": "/seed"}],
    }
    volume = {"name": "seed", "hostPath": {"path": str(folder), "type": "Directory"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "seed", "namespace": _NAMESPACE},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]},
    }


def _volume_and_claim(namespace: str, folder: Path) -> list[dict[str, object]]:
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"namespace": namespace, "name": CLAIM},
    }
    claim = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{namespace}-storage"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-storage", "labels": {"rljob.dev/e2e": namespace}},
            "spec": volume,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": claim,
        },
    ]
