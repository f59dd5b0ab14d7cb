"""`rljob samples`: prompts, responses, rewards and tokens of a run, for a person to read."""

import heapq
import io
import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljob.columns import terminal_width
from rljob_worker.cli.status import find_run
from rljob_worker.cli.views.figures import MISSING, format_number
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.lines import records_in
from rljob_worker.metrics.token_stretches import stretches_text

Record = dict[str, Any]

WIDTH_OF_FILES = 120
"""Characters of a line where no terminal says how many."""

AGENT_STYLES = ("bold green", "bold cyan", "bold magenta", "bold yellow", "bold blue", "bold red")
"""Styles of the agents of a team, in the order in which they first say something; the first is also that of a policy
without a name."""

KINDS = ("validation", "dropped", "waiting")
"""Marks of rows that are not of the batch of their step."""

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}

_FORM = re.compile(r"\s*([\w.\->]*?\w)\s*(<=|>=|!=|==|<|>|=|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """Which samples, in which order, and how many."""

    step: int | None
    where: Sequence[str]
    sort: str | None
    """A field; with a `-` before it the largest come first."""
    limit: int

    @property
    def fields(self) -> list[str]:
        """Those that are asked for by name."""
        sort = [] if self.sort is None else [self.sort.removeprefix("-")]
        return [*(parse_condition(text).field for text in self.where), *sort]

    def answer(self, records: Iterable[Record]) -> list[Record]:
        """Without an order: those of the newest steps, in the order in which they were written."""
        conditions = [parse_condition(text) for text in self.where]
        result = (
            record
            for record in records
            if self.step in (None, record["step"]) and all(condition.holds(record) for condition in conditions)
        )
        if self.sort is None:
            return last(result, self.limit)
        field = self.sort.removeprefix("-")
        comparable = (record for record in result if isinstance(value_at(record, field), int | float))
        pick = heapq.nlargest if self.sort.startswith("-") else heapq.nsmallest
        return pick(self.limit, comparable, key=lambda record: value_at(record, field))


def show_samples(run: str, runs_dir: Path, question: SampleQuery, *, as_json: bool, tokens: bool) -> int:
    """Through a pager on a terminal; an object per line as JSON. Raises InvalidJob where there is nothing, which is an
    answer as JSON, unless it was asked for a field that no sample has."""
    directory = find_run(run, runs_dir)
    result = question.answer(records_in(directory.samples))
    if not result:
        _raise_why(directory.samples, question, may_be_none=as_json)
    width = terminal_width() or WIDTH_OF_FILES
    if as_json:
        for record in result:
            click.echo(json.dumps(record))
    elif sys.stdout.isatty():
        click.echo_via_pager(f"{sample_pages(result, width, tokens=tokens, colour=True)}\n")
    else:
        click.echo(sample_pages(result, width, tokens=tokens, colour=False))
    return 0


def last(result: Iterable[Record], limit: int) -> list[Record]:
    """The newest steps first, rows of one step by policy and number, those of its validation behind: as many as fit in
    the limit."""
    kept: list[Record] = []
    for record in result:
        kept.append(record)
        if len(kept) >= 4 * limit:
            kept = _newest(kept, limit)
    return _newest(kept, limit)


def _newest(records: list[Record], limit: int) -> list[Record]:
    return list(islice(sorted(records, key=_place), limit))


def _place(record: Record) -> tuple[Any, ...]:
    kind = (bool(record.get(name)) for name in KINDS)
    return -record["step"], *kind, record.get("policy", ""), record.get("row", 0)


def _raise_why(path: Path, question: SampleQuery, *, may_be_none: bool) -> None:
    there: set[str] = set()
    steps: set[int] = set()
    for record in records_in(path):
        there |= set(_names(record))
        steps.add(record["step"])
    unknown = [field for field in question.fields if field not in there] if steps else []
    if may_be_none and not unknown:
        return
    if not steps:
        why = "the run has finished no step yet"
    elif unknown:
        why = f"no sample has a field {unknown[0]}, but {', '.join(sorted(there))}"
    elif question.step is not None and question.step not in steps:
        why = f"it has those of the steps {min(steps)} to {max(steps)}"
    else:
        why = "--where leaves none"
    raise InvalidJob(f"{path} has no such sample; {why}")


def _names(record: Record, of: str = "") -> Iterator[str]:
    """Fields, and those within them as `rewards.correct`."""
    for name, value in record.items():
        yield of + name
        if isinstance(value, dict):
            yield from _names(value, f"{of}{name}.")


def sample_pages(records: Iterable[Record], width: int, *, tokens: bool, colour: bool) -> str:
    """All of them as text. tokens: with a line for each token of the rows that have them."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    for record in records:
        _print_sample(console, record, tokens=tokens)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def _print_sample(console: Console, record: Record, *, tokens: bool) -> None:
    console.rule(Text(sample_heading(record)), align="left", characters="─")
    is_conversation = bool(record.get("messages"))
    if is_conversation:
        for line, style in conversation_lines(record):
            console.print(Text(line, style=style))
    for name, value in record.items():
        if is_conversation and name in ("prompt", "response"):
            continue  # the messages are what these say
        if isinstance(value, str) and value.startswith("data:"):
            console.print(Text(f"{name}: on the page of the run (rljob report)", style="bold"))
        elif isinstance(value, str) and name not in ("source", "policy", "agent"):
            console.print(Text(f"{name}:", style="bold"), Text(value), sep="\n")
    if "versions" in record:
        console.print(Text("drawn with:", style="bold"), Text(stretches_text(record["versions"])), sep="\n")
    if tokens and "tokens" in record:
        console.print(token_table(record["tokens"]))
    console.print()


def conversation_lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who said what, and the styles of the lines: turns of the policy, with the rewards of the world beside them, and
    what others said, of whose tokens nothing is learnt."""
    rewards = record.get("environment_rewards", [])
    turn = 0
    agents = list(dict.fromkeys(message["agent"] for message in record["messages"] if "agent" in message))
    for message in record["messages"]:
        is_sampled = message["role"] == "assistant"
        agent = message.get("agent")
        style = AGENT_STYLES[0 if agent is None else agents.index(agent) % len(AGENT_STYLES)]
        words = f"turn {turn + 1}, sampled" if is_sampled else "masked"
        if is_sampled:
            words += "".join(f", reward {format_number(value)}" for of, value in rewards if of == turn)
            turn += 1
        yield f"{agent or message['role']} ({words}):", style if is_sampled else "bold dim"
        text = message_text(message)
        yield text, "" if is_sampled else "dim"
    for of, value in rewards:
        if of is None:
            yield f"reward of the world at the end: {format_number(value)}", "bold"


def message_text(message: Mapping[str, Any]) -> str:
    """Thoughts, words and calls of a message."""
    thought = message.get("reasoning_content")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    parts = [f"(thinks) {thought}"] if thought else []
    parts += [str(message["content"])] if message.get("content") else []
    parts += [f"calls {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls]
    return "\n".join(parts)


def sample_heading(record: Record) -> str:
    """`step 3  row 17  reward 0.5  (correct 0, format 0.5)  gsm8k  validation`."""
    words = [f"step {record['step']}", *([record["policy"]] if "policy" in record else [])]
    words.append(f"row {record.get('row', MISSING)}")
    words += [record["agent"]] if "agent" in record else []
    if "reward" in record:
        words.append(f"reward {format_number(record['reward'])}")
    parts = ", ".join(f"{name} {format_number(value)}" for name, value in record.get("rewards", {}).items())
    words += [f"({parts})"] * bool(parts) + ([record["source"]] if "source" in record else [])
    words += [f"{record['turns']} turns"] if "turns" in record else []
    words += [name for name in KINDS if record.get(name)]
    return "  ".join(words)


def token_table(tokens: dict[str, list[Any]]) -> Table:
    """A line for each response token: its text, then what stages wrote about it."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = sorted(tokens, key=lambda name: (name != "text", name))
    table.add_column("#", justify="right")
    for name in names:
        table.add_column(name, justify="left" if name == "text" else "right")
    for i in range(max(map(len, tokens.values()))):
        cells = [_cell(tokens[name][i]) if i < len(tokens[name]) else "" for name in names]
        table.add_row(str(i + 1), *map(Text, cells))
    return table


def _cell(value: Any) -> str:
    return repr(value)[1:-1] if isinstance(value, str) else format_number(value)


@dataclass(frozen=True, slots=True)
class SampleCondition:
    """A field, how it is compared, and with what."""

    field: str
    sign: str
    value: str

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Never for a record that lacks the field. Numbers are compared as numbers, everything else as text; `~` looks
        for a text inside. Raises InvalidJob where the field is a number and what it is compared with is none."""
        value = value_at(record, self.field)
        if value is None:
            return False
        if self.sign == "~":
            return self.value in str(value)
        if isinstance(value, bool):
            return _OPERATORS[self.sign](str(value).lower(), self.value.lower())
        if isinstance(value, int | float):
            return _OPERATORS[self.sign](value, self._number())
        return _OPERATORS[self.sign](str(value), self.value)

    def _number(self) -> float:
        try:
            return float(self.value)
        except ValueError:
            message = (
                f"--where '{self.field}{self.sign}{self.value}': {self.field} is a number, and {self.value!r} is none"
            )
            raise InvalidJob(f"{message}; write one, or {self.field}~{self.value} for a text inside") from None


def parse_condition(text: str) -> SampleCondition:
    """Raises InvalidJob for what is not a condition."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidJob(
            f"--where {text!r} is not a condition; write FIELD, one of < <= > >= = != ~, and a value: 'reward<0.5', "
            "'rewards.correct=1' or 'response~answer' (~ looks for a text inside)"
        )
    return SampleCondition(*match.groups())


def value_at(record: Mapping[str, Any], field: str) -> Any:
    """The value of `rewards.correct`, None where there is none."""
    result: Any = record
    for name in field.split("."):
        if not isinstance(result, Mapping) or name not in result:
            return None
        result = result[name]
    return result
