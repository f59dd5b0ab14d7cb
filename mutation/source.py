"""`Source`: the text of a module and where a node of its tree stands in it.

`ast` counts columns in bytes of UTF-8, so everything here is bytes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Edit:
    """Bytes [start, end) of a source give way to `text`."""

    operator: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class MutatedSource:
    """A module's text."""

    text: str

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8."""
        return self.text.encode()

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        for line in self.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """First byte of a node, and the one behind its last."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def between(self, start: int, end: int) -> str:
        """The text of bytes [start, end)."""
        return self.data[start:end].decode()

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """The text of a node."""
        return self.between(*self.span(node))

    def replace(self, operator: str, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
        """The edit that writes `text` where `node` stands."""
        return Edit(operator, *self.span(node), text)

    def edited(self, edit: Edit) -> str:
        """The whole text after an edit."""
        return self.between(0, edit.start) + edit.text + self.between(edit.end, len(self.data))
