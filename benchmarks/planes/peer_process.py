"""Ray, TransferQueue, siiRL and verl in an environment of their own; controlled by lines on standard input.

    peer_process.py DIRECTORY WRITERS READERS TWO_PODS OBJECT_BYTES SYSTEM ...      (what `planes/peers.py` starts)

One Ray cluster for all of them: one node, or with TWO_PODS two nodes, writers on the one and readers on the other.
Every writer and reader is an actor. `peer_systems` has what each of them does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import ray
from peer_systems import SYSTEMS, Mailbox, Ranked
from ray.cluster_utils import Cluster
from rows import RowCase, act


@ray.remote(num_cpus=0)
class Actor:
    """One writer or reader of one system."""

    def __init__(self, system: str, kind: str, rank: int) -> None:
        self._where = system, kind, rank
        self._role: Ranked | None = None

    def number(self) -> int:
        return os.getpid()

    def begin(self, case: str, source: str) -> None:
        system, kind, rank = self._where
        self._role = None  # its arrays go before the next come
        self._role = SYSTEMS[system](RowCase.from_json(case), Path(source), kind, rank)

    def end(self) -> None:
        self._role = None

    def act(self, action: str, step: int) -> dict[str, Any]:
        return act(self._role, action, step)

    def rows_out(self) -> Any:
        return self._role.rows_out()

    def rows_in(self, chunk: Any) -> None:
        self._role.rows_in(chunk)


class Driver:
    """The cluster and the actors of all systems."""

    def __init__(self, writers: int, readers: int, two_pods: bool, object_bytes: int, systems: list[str]) -> None:
        self._num_readers = readers
        node = {"num_cpus": 4, "object_store_memory": object_bytes, "include_dashboard": False}
        everything = {"writer": 1e3, "reader": 1e3}
        here = {"writer": 1e3} if two_pods else everything
        self._cluster = Cluster(initialize_head=True, head_node_args=node | {"resources": here})
        if two_pods:
            self._cluster.add_node(**node | {"resources": {"reader": 1e3}})
        ray.init(address=self._cluster.address, namespace="planes", log_to_driver=False)
        self._set_up(systems)
        counts = {"writer": writers, "reader": readers}
        self._actors = {
            name: {kind: [self._start(name, kind, rank) for rank in range(counts[kind])] for kind in counts}
            for name in systems
        }
        self._numbers = {
            name: {kind: ray.get([actor.number.remote() for actor in actors]) for kind, actors in kinds.items()}
            for name, kinds in self._actors.items()
        }
        self._held: Any = None

    def _start(self, system: str, kind: str, rank: int) -> Any:
        actor: Any = Actor  # the decorator made another type of it
        return actor.options(resources={kind: 1}).remote(system, kind, rank)

    def _set_up(self, systems: list[str]) -> None:
        if "Ray" in systems:
            mailbox: Any = Mailbox
            self._mailbox = mailbox.options(name="mailbox", resources={"writer": 1}).remote()
        if "TransferQueue" in systems:
            import transfer_queue

            transfer_queue.init()
        if "siiRL" in systems:
            from siirl.data_coordinator.data_buffer import DataCoordinator

            made = DataCoordinator.options(name="coordinator", num_cpus=0, resources={"writer": 1})
            self._coordinator = made.remote(1, 1, self._num_readers)

    def begin(self, system: str, case: str, source: str) -> None:
        """From now on a system has the rows of a case."""
        ray.get([actor.begin.remote(case, source) for kind in self._actors[system].values() for actor in kind])

    def end(self, system: str) -> None:
        ray.get([actor.end.remote() for kind in self._actors[system].values() for actor in kind])

    def tell(self, system: str, action: str, step: int) -> list[dict[str, Any]]:
        actors = self._actors[system]
        if system == "verl" and action in ("put", "get"):
            return [act(self, action, step)]
        kinds = {"put": ("writer",), "release": ("writer", "reader")}.get(action, ("reader",))
        return ray.get([actor.act.remote(action, step) for kind in kinds for actor in actors[kind]])

    # ---- verl's controller is the driver

    def put(self, step: int) -> None:
        from verl import DataProto

        parts = ray.get([actor.rows_out.remote() for actor in self._actors["verl"]["writer"]])
        self._held = DataProto.concat(parts)

    def get(self, step: int) -> None:
        chunks = self._held.chunk(self._num_readers)
        self._held = None
        readers = self._actors["verl"]["reader"]
        ray.get([actor.rows_in.remote(chunk) for actor, chunk in zip(readers, chunks, strict=True)])

    # ---- processes

    def processes(self, system: str) -> dict[str, list[int]]:
        """Those of a system and those that all of them share."""
        mine = {number for numbers in self._numbers.values() for item in numbers.values() for number in item}
        named = {"TransferQueueController": "TransferQueue", "SimpleStorage": "TransferQueue"}
        named |= {"DataCoordinator": "siiRL", "Mailbox": "Ray"}
        result = {kind: list(numbers) for kind, numbers in self._numbers[system].items()}
        result["driver"] = [os.getpid()] if system == "verl" else []
        for process in psutil.Process().children(recursive=True):
            title = " ".join(process.cmdline())
            owner = next((owner for word, owner in named.items() if word in title), None)
            if process.pid in mine or owner not in (None, system):
                continue
            shared = "raylet" if "raylet/raylet" in title else "Ray, other"
            result.setdefault("service" if owner else shared, []).append(process.pid)
        return result

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def main() -> None:
    directory, writers, readers, two_pods, object_bytes, *systems = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    os.environ["RAY_TMPDIR"] = directory
    (Path(directory) / "ray").mkdir()
    driver = Driver(int(writers), int(readers), two_pods == "True", int(object_bytes), systems)
    print("[]", file=answers, flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(driver, what)(*arguments)), file=answers, flush=True)
    driver.close()


if __name__ == "__main__":
    main()
