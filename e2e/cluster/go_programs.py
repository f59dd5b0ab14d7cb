"""The programs of a Kubernetes cluster, built from their Go modules and kept by version."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster.commands import run
from rljob_worker.built_once import build_once, cache_root, short_digest

KUBERNETES_VERSION = "v1.34.2"
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
ETCD_VERSION = "v3.6.5"
COREDNS_VERSION = "v1.15.0"
BUILDKIT_VERSION = "v0.23.2"
HELM_VERSION = "v3.22.0"
KWOK_VERSION = "v0.8.0"
KUBECONFORM_VERSION = "v0.8.0"
HELM_UNITTEST_VERSION = "v1.1.2"
KUEUE_VERSION = "v0.15.0"
KIND_VERSION = "v0.33.0"


@dataclass(frozen=True, slots=True)
class GoProgram:
    """One executable: its file name, the package that is its main, and the module that holds it."""

    name: str
    package: str
    module: str
    version: str
    linker_flags: tuple[str, ...] = field(default=())
    main: str = ""
    """Source of a main of our own, in place of the package's."""

    def key(self) -> str:
        main = (self.main,) if self.main else ()
        return f"{self.name}-{self.version}-{short_digest(self.package, *self.linker_flags, *main)}"


def kubernetes_program(name: str) -> GoProgram:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    return GoProgram(
        name,
        f"k8s.io/kubernetes/cmd/{name}",
        "k8s.io/kubernetes",
        KUBERNETES_VERSION,
        tuple(f"-X k8s.io/component-base/version.{variable}={value}" for variable, value in stamps.items()),
    )


COREDNS = "github.com/coredns/coredns"
COREDNS_PLUGINS = ("bind", "errors", "kubernetes")


def coredns_main() -> str:
    """CoreDNS with what our Corefile names: other plugins bring SDKs of three clouds, two minutes of compiling."""
    plugins = "".join(f'import _ "{COREDNS}/plugin/{name}"\n' for name in COREDNS_PLUGINS)
    return f'package main\n\nimport "{COREDNS}/coremain"\n{plugins}\nfunc main() {{ coremain.Run() }}\n'


GO_PROGRAMS = {
    program.name: program
    for program in (
        *map(kubernetes_program, KUBERNETES_PROGRAMS),
        GoProgram("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", ETCD_VERSION),
        GoProgram("coredns", f"{COREDNS}/coremain", COREDNS, COREDNS_VERSION, main=coredns_main()),
        GoProgram("buildkitd", "github.com/moby/buildkit/cmd/buildkitd", "github.com/moby/buildkit", BUILDKIT_VERSION),
        GoProgram("buildctl", "github.com/moby/buildkit/cmd/buildctl", "github.com/moby/buildkit", BUILDKIT_VERSION),
        GoProgram("helm", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", HELM_VERSION),
        GoProgram("kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", KWOK_VERSION),
        GoProgram(
            "kubeconform",
            "github.com/yannh/kubeconform/cmd/kubeconform",
            "github.com/yannh/kubeconform",
            KUBECONFORM_VERSION,
        ),
        GoProgram(
            "helm-unittest",
            "github.com/helm-unittest/helm-unittest/cmd/helm-unittest",
            "github.com/helm-unittest/helm-unittest",
            HELM_UNITTEST_VERSION,
        ),
        GoProgram("kind", "sigs.k8s.io/kind", "sigs.k8s.io/kind", KIND_VERSION),
        GoProgram("kueue", "sigs.k8s.io/kueue/cmd/kueue", "sigs.k8s.io/kueue", KUEUE_VERSION),
    )
}

CLUSTER_PROGRAMS = (*KUBERNETES_PROGRAMS, "etcd", "coredns", "helm")


def program(name: str) -> Path:
    """The executable, built now if this machine has none of that version."""
    wanted = GO_PROGRAMS[name]
    folder = build_once(cache_root() / "bin" / wanted.key(), lambda fresh: build(wanted, fresh))
    return folder / name


def build(wanted: GoProgram, folder: Path) -> None:
    require_go()
    workspace = folder / "module"
    workspace.mkdir()
    prepare_module(wanted, workspace)
    if wanted.main:
        (workspace / "main.go").write_text(wanted.main)
    flags = " ".join(("-s", "-w", *wanted.linker_flags))
    argv = (
        "nice",
        "-n",
        "5",
        "go",
        "build",
        "-trimpath",
        "-gcflags=all=-dwarf=false",  # nobody debugs them: a sixth less to compile
        "-ldflags",
        flags,
        "-o",
        folder / wanted.name,
        "." if wanted.main else wanted.package,
    )
    run(*argv, cwd=workspace, env={"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"})
    shutil.rmtree(workspace)


def prepare_module(wanted: GoProgram, workspace: Path) -> None:
    """A module of our own that requires the program's, as a replace in a go.mod counts in the main module only."""
    run("go", "mod", "init", "rljob.dev/build", cwd=workspace)
    source = json.loads(run("go", "mod", "download", "-json", f"{wanted.module}@{wanted.version}", cwd=workspace))
    go_mod = json.loads(run("go", "mod", "edit", "-json", source["GoMod"]))
    edits = [f"-require={wanted.module}@{wanted.version}", *replacements(go_mod, wanted.version)]
    run("go", "mod", "edit", *edits, cwd=workspace)
    run("go", "get", f"{wanted.package}@{wanted.version}", cwd=workspace)


def replacements(go_mod: dict[str, Any], version: str) -> list[str]:
    """What a release replaces by other published modules, and the sibling modules that it requires at a placeholder.

    `go_mod` is what `go mod edit -json` says of it. Kubernetes v1.34.2 requires `k8s.io/api v0.0.0`, replaced by a
    folder; that folder is published as v0.34.2.
    """
    siblings = [entry["Path"] for entry in go_mod["Require"] if entry["Version"] == "v0.0.0"]
    published = {path: f"{path}@{version.replace('v1.', 'v0.', 1)}" for path in siblings}
    for entry in go_mod["Replace"] or ():
        if "Version" in entry["New"]:
            published[entry["Old"]["Path"]] = f"{entry['New']['Path']}@{entry['New']['Version']}"
    return [f"-replace={old}={new}" for old, new in published.items()]


def require_go() -> None:
    if shutil.which("go") is None:
        raise RuntimeError(
            "no `go` on PATH: the cluster's programs are built from their Go modules; install Go 1.25 or newer"
        )


def module_folder(name: str) -> Path:
    """Where the Go client keeps the source of a program's module, fetched now if it is not there."""
    wanted = GO_PROGRAMS[name]
    result = json.loads(run("go", "mod", "download", "-json", f"{wanted.module}@{wanted.version}", cwd=cache_root()))
    return Path(result["Dir"])
