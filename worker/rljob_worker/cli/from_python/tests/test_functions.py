"""Functions as a job names them."""

import importlib.util
import math
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rljob_worker.cli.from_python.functions import columns_read, module_name, module_of, name_of, pickle_into
from rljob_worker.errors import InvalidJob
from rljob_worker.users_code import pickled
from rljob_worker.users_code.function import as_name, load_function

LIMIT = 3


def short(row: dict[str, Any]) -> float:
    """1 for an answer of few words."""
    return float(len(words_of(row["response"])) <= LIMIT)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def with_columns(completions: list[str], answer: list[str], **kwargs: list[str]) -> list[float]:
    return [float(text == right + kwargs["unit"][0]) for text, right in zip(completions, answer, strict=True)]


def test_a_function_of_a_module_goes_by_its_name_and_one_made_elsewhere_has_none() -> None:
    assert module_name(math.sqrt) == "math:sqrt"
    assert module_name(short) == f"{__name__}:short"
    assert module_name(lambda row: 1.0) is None
    assert name_of(with_columns) == "with_columns"
    assert name_of(lambda row: 1.0) == "lambda"
    assert [as_name(name) for name in ("2_is_right", "_", "a" * 40)] == ["reward_2_is_right", "reward", "a" * 32]


def test_a_function_gets_the_columns_that_it_names() -> None:
    assert columns_read(with_columns, ["answer", "unit", "level"]) == ["answer", "unit"]
    assert columns_read(short, ["answer"]) == []
    assert columns_read(len, ["answer", "level"]) == ["answer", "level"], "what has no source may read all"


def test_a_module_of_sources_computes_what_the_functions_do(tmp_path: Path) -> None:
    functions = notebook(
        """
        import math
        from collections import Counter as Counts
        WEIGHTS = {"long": [1, 2]}

        def size(text):
            return math.sqrt(len(Counts(text)))

        def reward(row):
            return WEIGHTS["long"][1] * size(row["response"])
        """,
        tmp_path,
    )
    made = loaded(module_of([functions.reward]), tmp_path / "made.py")

    # four different letters: 2 * sqrt(4)
    assert made.reward({"response": "abcd"}) == functions.reward({"response": "abcd"}) == 4.0
    assert "size" in vars(made) and "Counts" in vars(made)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("reward = lambda row: 1.0", "no plain function"),
        (
            "def outer(x):\n    def reward(row):\n        return x\n    return reward\nreward = outer(1)",
            "no plain function",
        ),
        ("import sys\nhandle = sys.stdout\ndef reward(row):\n    return handle.tell()", "uses handle, a "),
    ],
)
def test_what_has_no_source_of_its_own_is_refused_by_name(source: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=said):
        module_of([notebook(source, tmp_path).reward])


def test_a_closure_is_called_in_another_process_by_its_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bonus = 0.25

    def reward(row: dict[str, Any]) -> float:
        return bonus + row["points"]

    run = pickle_into(tmp_path, reward)
    monkeypatch.setenv(pickled.FOLDER, str(tmp_path))

    assert run == "rljob_worker.users_code.pickled:reward"
    assert load_function("reward right", run)({"points": 1.0}) == 1.25
    with pytest.raises(InvalidJob, match="has no 'other'"):
        load_function("reward right", "rljob_worker.users_code.pickled:other")


def test_what_cannot_be_pickled_is_refused_by_name(tmp_path: Path) -> None:
    generator = (i for i in range(3))

    def reward(row: dict[str, Any]) -> float:
        return float(next(generator))

    with pytest.raises(InvalidJob, match="reward cannot be sent to other processes: TypeError"):
        pickle_into(tmp_path, reward)


def notebook(source: str, folder: Path) -> ModuleType:
    """A module whose functions cannot be imported by name, as those of a notebook's cells."""
    return loaded(textwrap.dedent(source), folder / "cells.py")


def loaded(source: str, path: Path) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("__main__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
