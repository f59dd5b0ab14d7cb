"""Makes models that have read conversations, and the data that they are trained on next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from rljob_worker.tiny.conversations import calculator, guessing_game, team
from rljob_worker.tiny.conversations.spoken import Spoken, collate_spoken
from rljob_worker.tiny.model import build_model
from rljob_worker.tiny.pretrain import Labelled, pretrain_on, reporter
from rljob_worker.tiny.problems import dataset, split_problems
from rljob_worker.tiny.recipe import ConversationRecipe
from rljob_worker.tiny.tokenizer import train_tokenizer

Rows = list[dict[str, str]]


def make_conversation_model(recipe: ConversationRecipe, directory: Path) -> None:
    """Writes `directory`/model, train.parquet and validation.parquet."""
    if recipe.subject == "Calculator":
        train, validation, spelling, read = _calculator(recipe)
    elif recipe.subject == "Team":
        train, validation, spelling, read = _team(recipe)
    else:
        validation = guessing_game.rows()
        train = 2 * validation  # as many as two workers can share
        spelling, read = guessing_game.spelling(), guessing_game.conversations(recipe.seed)
    for name, rows in (("train", train), ("validation", validation)):
        pq.write_table(pa.Table.from_pylist(rows), directory / f"{name}.parquet")
    tokenizer = train_tokenizer(spelling, has_tools=True)
    _pretrained(recipe, tokenizer, read, directory / "model", num_parts=4 if recipe.subject == "Team" else 1)
    tokenizer.save_pretrained(directory / "model")


def _calculator(recipe: ConversationRecipe) -> tuple[Rows, Rows, list[str], Iterator[Spoken]]:
    problems = calculator.products(recipe.seed, recipe.num_train, recipe.num_validation)
    train, validation = (calculator.rows(part, recipe.seed) for part in (problems.train, problems.validation))
    spelling = calculator.spelling(problems.train, recipe.seed)
    return train, validation, spelling, calculator.conversations(problems.train, recipe.seed)


def _team(recipe: ConversationRecipe) -> tuple[Rows, Rows, list[str], Iterator[Spoken]]:
    problems = split_problems(recipe.seed, recipe.num_validation)
    train = dataset(problems.train, recipe.num_train, recipe.seed)
    validation = dataset(problems.validation, recipe.num_validation, recipe.seed)
    spelling = team.spelling(problems.train, train, recipe.seed)
    return train, validation, spelling, team.conversations(problems.train, recipe.seed)


def _pretrained(
    recipe: ConversationRecipe,
    tokenizer: PreTrainedTokenizerFast,
    read: Iterator[Spoken],
    folder: Path,
    num_parts: int,
) -> None:
    """num_parts: into which a batch is divided by length, where much of it would be padding."""
    model = build_model(tokenizer, recipe.seed)

    def batch() -> list[Labelled]:
        rows = list(itertools.islice(read, recipe.pretraining.rows_per_step))
        if num_parts > 1:
            rows.sort(key=lambda spoken: spoken.num_characters)
        size = -(-len(rows) // num_parts)
        return [collate_spoken(tokenizer, rows[first : first + size]) for first in range(0, len(rows), size)]

    pretrain_on(model, batch, recipe.pretraining, reporter(model, recipe.pretraining.steps))
    model.save_pretrained(folder)
