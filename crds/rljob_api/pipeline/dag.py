"""`Graph`: order, levels and ancestors of named stages.  Knows names only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Graph:
    """A directed graph given by what each vertex comes after, in declaration order.

    Names in `after` that are not vertices are left out, so that one bad name does not hide other mistakes.
    """

    def __init__(self, after: Mapping[str, Sequence[str]]) -> None:
        self.after = {
            name: tuple(dict.fromkeys(item for item in before if item in after)) for name, before in after.items()
        }

    def cycle(self) -> tuple[str, ...]:
        """One cycle as `(a, b, ..., a)`, each after the one before it; empty when there is none."""
        state: dict[str, str] = {}
        for start in self.after:
            if result := self._cycle_from(start, state):
                return result
        return ()

    def _cycle_from(self, start: str, state: dict[str, str]) -> tuple[str, ...]:
        if start in state:
            return ()
        path, pending = [start], [iter(self.after[start])]
        state[start] = "open"
        while pending:
            above = next(pending[-1], None)
            if above is None:
                state[path.pop()] = "closed"
                pending.pop()
            elif state.get(above) == "open":
                # The path runs against the arrows, so the cycle reads backwards.
                return tuple(reversed([*path[path.index(above) :], above]))
            elif above not in state:
                state[above] = "open"
                path.append(above)
                pending.append(iter(self.after[above]))
        return ()

    def levels(self) -> dict[str, int]:
        """Length of the longest path to each vertex, 0 where nothing comes before.  The graph has no cycle."""
        remaining = {name: len(before) for name, before in self.after.items()}
        followers = self.followers()
        level = dict.fromkeys(self.after, 0)
        ready = [name for name, count in remaining.items() if count == 0]
        num_done = 0
        for name in ready:
            num_done += 1
            for follower in followers[name]:
                level[follower] = max(level[follower], level[name] + 1)
                remaining[follower] -= 1
                if remaining[follower] == 0:
                    ready.append(follower)
        assert num_done == len(self.after), f"levels of a graph with the cycle {self.cycle()}"
        return level

    def order(self) -> tuple[str, ...]:
        """All vertices, each after what it comes after: by level, then by declaration."""
        level = self.levels()
        return tuple(sorted(self.after, key=lambda name: level[name]))  # sorted() keeps declaration order

    def followers(self) -> dict[str, list[str]]:
        """For each vertex, the vertices that come directly after it, in declaration order."""
        followers: dict[str, list[str]] = {name: [] for name in self.after}
        for name, before in self.after.items():
            for item in before:
                followers[item].append(name)
        return followers

    def ancestors(self, name: str) -> frozenset[str]:
        """Everything upstream of `name`; `name` itself only when it lies on a cycle."""
        result: set[str] = set()
        pending = list(self.after[name])
        while pending:
            item = pending.pop()
            if item not in result:
                result.add(item)
                pending.extend(self.after[item])
        return frozenset(result)
