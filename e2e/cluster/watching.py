"""Waiting for a cluster while its processes are watched: one that has ended is reported at once, with its log."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.commands import CommandFailed
from e2e.cluster.processes import ProcessTable, tail
from e2e.cluster.waiting import Answer, wait_until

MAX_ENDS = 5
"""How often a program of a node may end and be started again while its cluster is waited for."""

Kubectl = Callable[..., str]


class ProcessEnded(RuntimeError):
    """What is waited for cannot come."""


@dataclass(frozen=True, slots=True)
class NodeLogs:
    """What the programs of a node leave behind; `ended` has a line `PROGRAM EXIT_STATUS` for each that ended."""

    name: str
    folder: Path

    def ends(self) -> Counter[str]:
        return Counter(line.split()[0] for line in tail(self.folder / "ended").splitlines())

    def forget_ends(self) -> None:
        (self.folder / "ended").unlink(missing_ok=True)

    def given_up(self) -> list[str]:
        return [program for program, times in self.ends().items() if times >= MAX_ENDS]

    def end_of(self, program: str) -> str:
        return f"{self.name}, {program}.log:\n{tail(self.folder / f'{program}.log', 4000)}"


@dataclass(frozen=True, slots=True)
class ClusterWatch:
    """The processes of a cluster, and with `kubectl` the nodes that are to be Ready."""

    processes: ProcessTable
    nodes: Sequence[NodeLogs] = ()
    kubectl: Kubectl | None = None

    def wait_until(
        self, question: Callable[[], Answer | None], what: str, timeout_seconds: float, interval_seconds: float = 0.1
    ) -> Answer:
        """As `waiting.wait_until`, but a command that fails is retried, and the TimeoutError reports the nodes.

        ProcessEnded, at once, where a process of the cluster has ended, or a program of a node again and again.
        """
        refused = ""

        def ask() -> Answer | None:
            nonlocal refused
            if ended := self.ended():
                raise ProcessEnded(f"waited for {what}, but {ended}")
            try:
                answer, refused = question(), ""
            except CommandFailed as error:
                answer, refused = None, f"\n{error}"
            return answer

        try:
            return wait_until(ask, what, timeout_seconds, interval_seconds)
        except TimeoutError as error:
            raise TimeoutError("\n\n".join((f"{error}{refused}", *self.story()))) from None

    def ended(self) -> str:
        """The first process that has ended for good, with the end of its log; empty where there is none."""
        for name in self.processes.ended():
            return f"{name} has ended; its log ends with:\n{self.processes.log_tail(name)}"
        for node in self.nodes:
            for program in node.given_up():
                return f"{program} of {node.name} has ended {MAX_ENDS} times. {node.end_of(program)}"
        return ""

    def story(self) -> list[str]:
        """Each node that is not Ready: its conditions, what ended on it, and the ends of its logs."""
        result = self.conditions()
        lines: list[str] = []
        for node in self.nodes:
            conditions = result.get(node.name, [])
            if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
                continue
            lines.append("\n".join((f"{node.name} is not Ready:", *map(describe, conditions))))
            lines += [f"{program} of {node.name} ended {times} times" for program, times in node.ends().items()]
            lines += [node.end_of(program) for program in ("kubelet", "containerd")]
        return lines

    def conditions(self) -> dict[str, list[dict[str, Any]]]:
        """By node; those that kubelet registered."""
        try:
            rows = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"] if self.kubectl else []
        except CommandFailed:
            rows = []
        return {row["metadata"]["name"]: row["status"].get("conditions", []) for row in rows}


def describe(condition: dict[str, Any]) -> str:
    said = (condition["type"], "=", condition["status"], " ", condition.get("reason"), ": ", condition.get("message"))
    return "  " + "".join(word or "" for word in said)
