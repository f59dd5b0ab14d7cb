"""Records of samples.jsonl: one for each row that is shown, whoever told something about it."""

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_worker.row_number import row_number

Record = dict[str, Any]


def joined(samples: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Records about one row as one, in the order in which rows first come up; its `tokens` get the columns of all.

    [{row_id: 1, response: "4"}, {row_id: 1, tokens: {text: ["4"]}}, {row_id: 1, tokens: {advantages: [0.5]}}]
        -> [{row: 2, response: "4", tokens: {text: ["4"], advantages: [0.5]}}]
    """
    rows: dict[tuple[Any, ...], Record] = {}
    for number, sample in enumerate(samples):
        # a row of validation, and a row that was drawn and dropped, has a number that a row of the batch has, too
        key = (sample.get("row_id", f"record {number}"), sample.get("validation", False), sample.get("dropped", False))
        row = rows.setdefault(key, {"row": row_number(sample["row_id"])} if "row_id" in sample else {})
        tokens = {**row.get("tokens", {}), **sample.get("tokens", {})}
        row |= {name: value for name, value in sample.items() if name != "row_id"}
        if tokens:
            row["tokens"] = tokens
    return list(rows.values())
