"""Makes models that have read conversations, and the data that they are trained on next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from rljob_worker.tiny import calculator, guessing_game
from rljob_worker.tiny.model import build_model
from rljob_worker.tiny.pretrain import Labelled, pretrain_on, reporter
from rljob_worker.tiny.recipe import ConversationRecipe
from rljob_worker.tiny.spoken import Spoken, collate_spoken
from rljob_worker.tiny.tokenizer import train_tokenizer

Rows = list[dict[str, str]]


def make_conversation_model(recipe: ConversationRecipe, directory: Path) -> None:
    """Writes `directory`/model, train.parquet and validation.parquet."""
    if recipe.subject == "Calculator":
        train, validation, spelling, read = _calculator(recipe)
    else:
        validation = guessing_game.rows()
        train = 2 * validation  # as many as two workers can share
        spelling, read = guessing_game.spelling(), guessing_game.conversations(recipe.seed)
    for name, rows in (("train", train), ("validation", validation)):
        pq.write_table(pa.Table.from_pylist(rows), directory / f"{name}.parquet")
    tokenizer = train_tokenizer(spelling, has_tools=True)
    _pretrained(recipe, tokenizer, read, directory / "model")
    tokenizer.save_pretrained(directory / "model")


def _calculator(recipe: ConversationRecipe) -> tuple[Rows, Rows, list[str], Iterator[Spoken]]:
    problems = calculator.products(recipe.seed, recipe.num_train, recipe.num_validation)
    train, validation = (calculator.rows(part, recipe.seed) for part in (problems.train, problems.validation))
    spelling = calculator.spelling(problems.train, recipe.seed)
    return train, validation, spelling, calculator.conversations(problems.train, recipe.seed)


def _pretrained(
    recipe: ConversationRecipe, tokenizer: PreTrainedTokenizerFast, read: Iterator[Spoken], folder: Path
) -> None:
    model = build_model(tokenizer, recipe.seed)

    def batch() -> list[Labelled]:
        return [collate_spoken(tokenizer, list(itertools.islice(read, recipe.pretraining.rows_per_step)))]

    pretrain_on(model, batch, recipe.pretraining, reporter(model, recipe.pretraining.steps))
    model.save_pretrained(folder)
