"""The control groups of a node: one in every hierarchy, made before its kubelet starts and removed with it."""

from contextlib import suppress
from pathlib import Path

from e2e.cluster.waiting import wait_until

MOUNTS = Path("/proc/mounts")
REMOVE_SECONDS = 30.0


def hierarchies() -> list[Path]:
    """Mount points of cgroup v1's controllers and of v2 beside them."""
    rows = [line.split() for line in MOUNTS.read_text().splitlines()]
    result = [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]
    if not any(path.name == "freezer" for path in result):
        raise RuntimeError(
            "no cgroup v1 freezer here: the local cluster needs cgroup v1; with a docker engine use CLUSTER=kind"
        )
    return result


def create(name: str) -> None:
    for hierarchy in hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        if hierarchy.name == "cpuset":  # a new group has none, and takes no process until it has
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (hierarchy / name / setting).write_text((hierarchy / setting).read_text())


def add(name: str, pid: int) -> None:
    """Into the freezer only, so that a test can stop a whole node; kubelet places the pods."""
    for hierarchy in hierarchies():
        if hierarchy.name == "freezer":
            (hierarchy / name / "cgroup.procs").write_text(str(pid))


def freeze(name: str, frozen: bool) -> None:
    for hierarchy in hierarchies():
        if hierarchy.name == "freezer":
            (hierarchy / name / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def remove(name: str) -> None:
    """Deepest first; the kernel lets go of an emptied group a moment after its last process."""

    def is_gone() -> bool:
        left = [path for hierarchy in hierarchies() if (path := hierarchy / name).exists()]
        for group in left:
            remove_tree(group)
        return not left

    wait_until(is_gone, f"control groups {name}, which are in use", REMOVE_SECONDS, interval_seconds=0.02)


def remove_tree(group: Path) -> None:
    with suppress(OSError):
        for child in group.iterdir():
            if child.is_dir():
                remove_tree(child)
        group.rmdir()
