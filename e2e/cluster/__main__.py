"""`python -m e2e.cluster`: a real Kubernetes cluster on this machine, without a docker engine."""

import argparse
import sys
from collections.abc import Callable, Sequence

from e2e.cluster import KubeCluster, control_plane
from e2e.cluster.cluster import backend


def build(options: argparse.Namespace) -> None:
    backend().build()


def up(options: argparse.Namespace) -> None:
    devices: dict[str, dict[str, int]] = {}
    for node, resource, count in options.device:
        devices.setdefault(node, {})[resource] = int(count)
    cluster = KubeCluster.up(options.nodes, devices, options.kwok, options.index, not options.old_images)
    cluster.leave_running()
    print(f"{options.nodes + options.kwok} nodes Ready: export KUBECONFIG={cluster.kubeconfig}")


def down(options: argparse.Namespace) -> None:
    KubeCluster.attach(options.index).down()


def status(options: argparse.Namespace) -> None:
    cluster = KubeCluster.attach(options.index)
    processes = cluster.run_dir.processes
    for name in processes.names():
        pid = processes.pid(name)
        print(f"{name:26} {pid or 'ended'}")
    print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")


def kubeconfig(options: argparse.Namespace) -> None:
    print(KubeCluster.attach(options.index).kubeconfig)


def load(options: argparse.Namespace) -> None:
    for image, num_bytes in KubeCluster.attach(options.index).load_images().items():
        print(f"{image}  {num_bytes / 1e6:.1f} MB sent")


def kubectl(options: argparse.Namespace) -> None:
    print(KubeCluster.attach(options.index).kubectl(*options.words), end="")


def node_kill(options: argparse.Namespace) -> None:
    KubeCluster.attach(options.index).kill_node(options.node)


def node_restart(options: argparse.Namespace) -> None:
    KubeCluster.attach(options.index).restart_node(options.node)


def kubelet_kill(options: argparse.Namespace) -> None:
    KubeCluster.attach(options.index).kill_kubelet(options.node)


def kubelet_start(options: argparse.Namespace) -> None:
    KubeCluster.attach(options.index).start_kubelet(options.node)


def logs(options: argparse.Namespace) -> None:
    """The end of every component's log, or of one."""
    cluster = KubeCluster.attach(options.index)
    for name in [options.name] if options.name else [*control_plane.PROCESSES]:
        print(f"==> {name} <==\n{cluster.run_dir.processes.log_tail(name)}")


Command = Callable[[argparse.Namespace], None]
PLAIN: dict[str, tuple[Command, str]] = {
    "build": (build, "build and keep all programs and images"),
    "down": (down, "end the cluster and leave nothing"),
    "status": (status, "its processes and nodes"),
    "kubeconfig": (kubeconfig, "where the administrator's kubeconfig is"),
    "load": (load, "rebuild the images that changed and bring them to the running nodes"),
}
OF_A_NODE: dict[str, tuple[Command, str]] = {
    "node-kill": (node_kill, "power off"),
    "node-restart": (node_restart, "power off and on"),
    "kubelet-kill": (kubelet_kill, "end the node's kubelet; containers run on"),
    "kubelet-start": (kubelet_start, "start it again"),
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    top.add_argument("--index", type=int, default=0, help="which of the clusters on this machine (default 0)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, (command, help) in PLAIN.items():
        commands.add_parser(name, help=help).set_defaults(command=command)
    for name, (command, help) in OF_A_NODE.items():
        of_a_node = commands.add_parser(name, help=help)
        of_a_node.add_argument("node", type=int)
        of_a_node.set_defaults(command=command)
    starting = commands.add_parser("up", help="start a cluster and wait until its nodes are Ready")
    starting.add_argument("--nodes", type=int, default=2)
    starting.add_argument("--kwok", type=int, default=0, help="simulated nodes beside them")
    starting.add_argument("--device", nargs=3, action="append", default=[], metavar=("NODE", "RESOURCE", "COUNT"))
    starting.add_argument("--old-images", action="store_true", help="take the images as they were built last")
    starting.set_defaults(command=up)
    logging = commands.add_parser("logs", help="the end of the components' logs")
    logging.add_argument("name", nargs="?", help="one component, such as kube-scheduler")
    logging.set_defaults(command=logs)
    passing = commands.add_parser("kubectl", help="kubectl with the administrator's kubeconfig")
    passing.add_argument("words", nargs=argparse.REMAINDER)
    passing.set_defaults(command=kubectl)
    return top


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        options.command(options)
    except (RuntimeError, ValueError, LookupError, TimeoutError) as error:
        print(f"e2e.cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
