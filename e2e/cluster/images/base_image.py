"""Images that need no builder: the pod sandbox, a shell to look around with, and what stands in for python:3.11-slim.

Where no image registry is in reach, Debian's own Python is a base with the same version and layout; a released image is
built on python:3.11-slim by the same Dockerfile.
"""

import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.images.archive import image_config, write_image
from e2e.cluster.system_packages import IMAGE_BUILDING, ensure_installed
from rljob_worker.built_once import build_once, cache_root, short_digest

PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
PYTHON_IMAGE = "localhost/python:3.11-slim"

RELEASE = "bookworm"
FORMAT = inspect.getsource(image_config)
PYTHON_PACKAGES = (
    "ca-certificates",
    "netbase",
    "python3",
    "python3-distutils",
    "python3-pip",
    "python3-venv",
    "tzdata",
)
# a sandbox holds the pod's namespaces: it only waits, and as PID 1 reaps what it inherits
PAUSE_SOURCE = """
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""


def pause_archive() -> Path:
    return archive("pause", short_digest(PAUSE_SOURCE, FORMAT), build_pause)


def busybox_archive() -> Path:
    return archive("busybox", short_digest(FORMAT), build_busybox)


def python_archive() -> Path:
    recipe = map(inspect.getsource, (like_dockers_python, forget_this_machine))
    return archive("python-3.11", short_digest(RELEASE, *PYTHON_PACKAGES, *recipe, FORMAT), build_python)


def archive(name: str, key: str, build: Callable[[Path], None]) -> Path:
    return build_once(cache_root() / "base-images" / f"{name}-{key}", build) / "image.tar"


def build_pause(folder: Path) -> None:
    ensure_installed(IMAGE_BUILDING)
    root = folder / "root"
    root.mkdir()
    run("gcc", "-Os", "-static", "-s", "-x", "c", "-o", root / "pause", "-", input=PAUSE_SOURCE)
    write_image(root, PAUSE_IMAGE, folder / "image.tar", {"Entrypoint": ["/pause"], "User": "65532"})
    shutil.rmtree(root)


def build_busybox(folder: Path) -> None:
    ensure_installed(IMAGE_BUILDING)
    root = folder / "root"
    (root / "bin").mkdir(parents=True)
    (root / "tmp").mkdir(mode=0o1777)
    executable = shutil.which("busybox", path="/bin:/usr/bin")
    assert executable, "the package busybox-static was just installed"
    shutil.copy(executable, root / "bin" / "busybox")
    for applet in run(executable, "--list").split():
        if applet != "busybox":  # a link of that name would replace the program by itself
            (root / "bin" / applet).symlink_to("busybox")
    write_image(root, BUSYBOX_IMAGE, folder / "image.tar", {"Cmd": ["sh"]})
    shutil.rmtree(root)


def build_python(folder: Path) -> None:
    ensure_installed(IMAGE_BUILDING)
    root = folder / "root"
    include = ",".join(PYTHON_PACKAGES)
    run("nice", "-n", "5", "debootstrap", "--variant=minbase", f"--include={include}", RELEASE, root, mirror())
    like_dockers_python(root)
    forget_this_machine(root)
    config = {
        "Env": ["PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
        "Cmd": ["python3"],
    }
    write_image(root, PYTHON_IMAGE, folder / "image.tar", config)
    shutil.rmtree(root)


def like_dockers_python(root: Path) -> None:
    """`python` and `pip` under /usr/local/bin, and packages installed without a virtual environment."""
    for name, target in {"python": "python3", "python3": "python3", "pip": "pip3"}.items():
        link = root / "usr/local/bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/usr/bin/{target}")
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)


def forget_this_machine(root: Path) -> None:
    """Takes out what debootstrap copied from here, its downloads, and what no container reads."""
    (root / "etc/resolv.conf").write_text("")
    (root / "etc/hostname").write_text("localhost\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    for folder in (
        "var/cache/apt",
        "var/lib/apt/lists",
        "var/log",
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
    ):
        empty(root / folder)
    empty(root / "dev")


def empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def mirror(apt_folder: Path = Path("/etc/apt")) -> str:
    """Where this machine's own packages come from."""
    for path in (apt_folder / "sources.list", *sorted(apt_folder.glob("sources.list.d/*"))):
        result = path.is_file() and mirror_in(path.read_text())
        if result:
            return result
    raise RuntimeError(
        f"{apt_folder} names no source of {RELEASE}: the base image is made from a Debian {RELEASE} mirror"
    )


def mirror_in(sources: str) -> str | None:
    """The mirror of the release's main suite in apt's one-line form or its paragraph form."""
    one_line = re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{RELEASE}\s", sources, re.M)
    if one_line:
        return one_line[1]
    for paragraph in re.split(r"\n\s*\n", sources):
        fields = dict(re.findall(r"^(URIs|Suites):\s*(.+)$", paragraph, re.M))
        if RELEASE in fields.get("Suites", "").split():
            return str(fields["URIs"]).split()[0]
    return None
