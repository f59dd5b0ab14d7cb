"""Kubelet's device plugin interface, generated from the interface file of its own Go module and kept by version."""

import importlib
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

from e2e.cluster.commands import run
from e2e.cluster.go_programs import KUBERNETES_VERSION
from rljob_worker.built_once import build_once, cache_root, short_digest

KUBELET_MODULE = f"k8s.io/kubelet@{KUBERNETES_VERSION.replace('v1.', 'v0.', 1)}"
INTERFACE = "pkg/apis/deviceplugin/v1beta1/api.proto"


def generated() -> Path:
    key = short_digest(KUBELET_MODULE, INTERFACE, grpc_tools_version())
    return build_once(cache_root() / "device-plugin-api" / key, generate)


def grpc_tools_version() -> str:
    return importlib.metadata.version("grpcio-tools")


def generate(folder: Path) -> None:
    source = json.loads(run("go", "mod", "download", "-json", KUBELET_MODULE, cwd=folder))["Dir"]
    # the name becomes the Python modules' and the name under which protobuf knows the file
    shutil.copyfile(Path(source) / INTERFACE, folder / "kubelet_device_plugin.proto")
    outputs = (f"--python_out={folder}", f"--grpc_python_out={folder}")
    run(sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *outputs, folder / "kubelet_device_plugin.proto")


def load(name: str) -> ModuleType:
    folder = str(generated())
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


api = load("kubelet_device_plugin_pb2")
services = load("kubelet_device_plugin_pb2_grpc")
