"""What the trials of one module mean, and how that is reported."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from mutation.mutants import Mutant
from mutation.table import Module, Survivor


@dataclass(frozen=True)
class Result:
    """A module's mutants that were tried, and which of them survived."""

    module: Module
    tried: list[Mutant]
    survived: list[Mutant]

    @property
    def percent(self) -> float:
        """How many of a hundred are killed; all when there are none."""
        return 100.0 * (1 - len(self.survived) / len(self.tried)) if self.tried else 100.0


@dataclass(frozen=True)
class ModuleVerdict:
    """A result held against what is known and asked for."""

    result: Result
    unlisted: list[Mutant]
    """Survivors without a reason."""
    killed: list[Survivor]
    """Listed as survivors, but killed."""
    gone: list[Survivor]
    """Listed, but the module has no such mutant."""

    @property
    def passed(self) -> bool:
        """Enough is killed, and what survives has a reason."""
        return not self.unlisted and self.result.percent >= self.result.module.at_least


def judge(result: Result, known: Collection[Survivor], keys: Collection[tuple[str, str, str]]) -> ModuleVerdict:
    """`known` survivors may be of any module; `keys` are those of all mutants of this one, tried or not."""
    known = [item for item in known if item.module == result.module.name]
    listed = {item.key for item in known}
    survived = {mutant.key for mutant in result.survived}
    killed = {mutant.key for mutant in result.tried} - survived
    return ModuleVerdict(
        result,
        [mutant for mutant in result.survived if mutant.key not in listed],
        [item for item in known if item.key in killed],
        [item for item in known if item.key not in keys],
    )


def findings_text(verdict: ModuleVerdict, original: str) -> str:
    """Everything that a person should look at, in paragraphs; empty when there is nothing."""
    module = verdict.result.module
    parts = [_unlisted(module, mutant, original) for mutant in verdict.unlisted]
    parts += [f"killed, take it out of survivors.toml: {_named(item)}" for item in verdict.killed]
    parts += [f"no such mutant, take it out of survivors.toml: {_named(item)}" for item in verdict.gone]
    if verdict.result.percent < module.at_least:
        parts.append(f"{module.name}: {verdict.result.percent:.1f} % killed, {module.at_least:g} % asked for")
    return "\n\n".join(parts)


def row(result: Result) -> str:
    """A line of the table: module, mutants, killed, percent."""
    killed = len(result.tried) - len(result.survived)
    return f"| {result.module.name} | {len(result.tried)} | {killed} | {result.percent:.1f} |"


def _unlisted(module: Module, mutant: Mutant, original: str) -> str:
    scope, line, change = (json.dumps(text, ensure_ascii=False) for text in mutant.key)
    return (
        f"survived: {module.path}:{mutant.line_number} ({mutant.operator})\n{mutant.diff(original)}\n"
        f'[["{module.name}"]]\nscope = {scope}\nline = {line}\nchange = {change}\nreason = ""'
    )


def _named(survivor: Survivor) -> str:
    scope, line, change = survivor.key
    return f"{survivor.module}: {scope}: {line}: {change}"
