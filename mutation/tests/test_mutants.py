"""Tests of mutants: where they are made, their names, what they show."""

from mutation.mutants import mutants_of

FOR_READERS = '''"""A docstring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from a import b

__all__ = ["f"]


@decorated(order=1)
class C(Protocol):
    """Another."""

    field: "Literal[1]"
    """A remark."""

    @property
    def f(self, a: int | None, b: "text") -> Literal[2]: ...
'''

TWICE = """
class Box:
    def open(self):
        if self.lid > 1 > 0:
            return self.lid
        if self.lid > 1 > 0:
            return self.lid
"""


def test_what_is_for_readers_is_left_alone():
    assert mutants_of(FOR_READERS) == []


def test_a_mutant_is_named_by_scope_line_and_change():
    keys = [mutant.key for mutant in mutants_of(TWICE)]
    line = "if self.lid > 1 > 0:"
    assert ("Box.open", line, "> -> >=") in keys
    assert ("Box.open", line, "> -> >= #4") in keys  # two on each of two equal lines
    assert ("Box.open", "return self.lid", "self.lid -> None #2") in keys
    assert len(set(keys)) == len(keys)


def test_a_name_outlives_lines_that_come_before():
    moved = [mutant.key for mutant in mutants_of("\n# a remark\n" + TWICE)]
    assert moved == [mutant.key for mutant in mutants_of(TWICE)]


def test_a_mutant_shows_its_lines():
    (mutant,) = mutants_of("def f(a, b):\n    return (a\n        is b)\n")[1:]
    assert (mutant.line_number, mutant.line) == (3, "is b)")
    assert mutant.diff("def f(a, b):\n    return (a\n        is b)\n") == "-        is b)\n+        is not b)"


def test_a_mutant_is_another_program():
    assert [mutant.change for mutant in mutants_of("f(a, a)")] == ["f(a, a) -> pass"]
