"""containerd: its configuration, and what is asked of one through `ctr`."""

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import CommandFailed, run

NAMESPACE = "k8s.io"
CRI = "io.containerd.grpc.v1.cri"
# the first would create /opt/containerd on the host, the others want file systems that are not there
UNWANTED = (
    "io.containerd.internal.v1.opt",
    *(f"io.containerd.snapshotter.v1.{n}" for n in ("btrfs", "aufs", "zfs", "devmapper")),
)


def node_config(sandbox_image: str, cni_folder: Path) -> str:
    """The containerd of a node: paths are the node's own, in its mount namespace."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {toml_list(UNWANTED)}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."{CRI}"]
  sandbox_image = "{sandbox_image}"
  disable_apparmor = true
  restrict_oom_score_adj = true  # root without CAP_SYS_RESOURCE may not lower it
  [plugins."{CRI}".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni_folder}"
  [plugins."{CRI}".containerd]
    snapshotter = "overlayfs"
"""


def store_config(folder: Path) -> str:
    """A containerd that only holds images."""
    return f"""version = 2
root = "{folder / "root"}"
state = "{folder / "state"}"
disabled_plugins = {toml_list((CRI, *UNWANTED))}
[grpc]
  address = "{folder / "containerd.sock"}"
"""


def toml_list(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


@dataclass(frozen=True, slots=True)
class StoredImage:
    name: str
    media_type: str
    digest: str


@dataclass(frozen=True, slots=True)
class Containerd:
    """One running containerd, reached by its socket."""

    socket: Path

    def ctr(self, *words: str | Path, input: bytes | None = None) -> str:
        return run("ctr", "--address", self.socket, "--namespace", NAMESPACE, *words, input=input)

    def answers(self) -> bool:
        try:
            self.ctr("version")
        except CommandFailed:
            return False
        return True

    def images(self) -> dict[str, StoredImage]:
        """By name."""
        rows = (line.split() for line in self.ctr("images", "ls").splitlines()[1:])
        return {row[0]: StoredImage(row[0], row[1], row[2]) for row in rows}

    def blobs(self) -> set[str]:
        """Digests of the content that is here."""
        return set(self.ctr("content", "ls", "-q").split())

    def import_archive(self, archive: Path) -> None:
        self.ctr("images", "import", archive)
