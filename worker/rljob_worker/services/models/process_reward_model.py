"""A token classifier with two labels: how good each step of a response is."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoModelForTokenClassification

from rljob_api.catalogue.services import ProcessRewardModelOptions
from rljob_worker.services.models.classifier import ServedClassifier
from rljob_worker.services.models.loading import Answer
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.requests import Row, fill_template
from rljob_worker.services.steps import AGGREGATES, Step, kept_pieces, steps_of


class ServedProcessRewardModel(ServedClassifier):
    """The score of a step is the probability of the second label at the last token of the separator after it."""

    def __init__(self, options: ProcessRewardModelOptions, place: ModelPlacement = ON_CPU) -> None:
        super().__init__(AutoModelForTokenClassification, options, num_labels=2, place=place)
        self._options = options

    def rewards(self, rows: Sequence[Row]) -> list[Answer]:
        """The sum of each row's step scores, with `step_rewards`, the character after each step and its
        score; `steps`, how many had a score; and `truncated`: 1 where the text was longer than maxTokens and lost its
        beginning, with the scores of steps that are there."""
        options = self._options
        steps = [steps_of(row["response"], options.separator) for row in rows]
        read = [self._pieces(row, item) for row, item in zip(rows, steps, strict=True)]
        kept = [kept_pieces(head, pieces, options.max_tokens) for head, pieces in read]
        logits = self.logits([tokens for tokens, _ in kept])
        answers: list[Answer] = []
        for of_row, (head, pieces), (_, ends), of_tokens in zip(steps, read, kept, logits, strict=True):
            scores = of_tokens.softmax(-1)[ends, 1].tolist()
            last = of_row[len(of_row) - len(ends) :]
            answers.append(
                {
                    "reward": AGGREGATES[options.aggregate](scores),
                    "step_rewards": [[step.end, score] for step, score in zip(last, scores, strict=True)],
                    "steps": float(len(scores)),
                    "truncated": float(len(head) + sum(map(len, pieces)) > options.max_tokens),
                }
            )
        return answers

    def _pieces(self, row: Row, steps: Sequence[Step]) -> tuple[list[int], list[list[int]]]:
        """Tokens of the text before the steps, and of each step with its separator."""
        separator = self._options.separator
        head = self.tokenizer(fill_template(self._options.template, row))["input_ids"]
        pieces = self.tokenizer([step.text + separator for step in steps], add_special_tokens=False)["input_ids"]
        return list(head), [list(piece) for piece in pieces]
