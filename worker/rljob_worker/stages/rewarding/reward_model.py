"""RewardModel: what a sequence classifier of the job's own says of every response."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from rljob_api.catalogue.services import Classifier
from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.finite import first_not_finite
from rljob_worker.metrics.scalars import mean
from rljob_worker.services.texts import Text, graded_texts, load_grading_tokenizer
from rljob_worker.stages.rewarding.reward import reward_rows
from rljob_worker.stages.stage import Resources, StageContext, StageResult

_log = logging.getLogger(__name__)


class RewardModel:
    """Rows are read as text with the policy's tokenizer, and written with the model's own and its template. What the
    head says at the last token is the row's number."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        spec, (model,) = resources.plan.spec, stage.models
        self._engine = resources.scoring_engines[model]
        (self._column,) = stage.writes
        self._reward = next(reward for reward in spec.rewards if reward.model == model)
        self._options = Classifier.model_validate(self._reward.options)
        source = spec.source_of(model)
        self._template_arguments = source.chat_template
        self._tokenizer = load_grading_tokenizer(self._options.tokenizer or source.path)
        self._has_warned = False

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        started, options = time.perf_counter(), self._options
        rows = [self._row(row) for row in reward_rows(batch, context.decode)]
        texts = graded_texts(self._tokenizer, rows, options.template, options.max_tokens, self._template_arguments)
        numbers = self._engine.values(read_whole(batch, texts)).values.astype(np.float64)
        self._require_numbers(numbers, batch)
        if options.activation == "Sigmoid":
            numbers = np.exp(-np.logaddexp(0.0, -numbers))
        num_truncated = sum(text.is_truncated for text in texts)
        self._tell(num_truncated, len(texts))
        metrics = {
            "time/forward_seconds": mean(time.perf_counter() - started),
            f"reward/{self._reward.name}/truncated": mean(num_truncated, len(texts)),
        }
        return StageResult(
            batch.select([]).with_columns({self._column: Column.fixed(numbers)}), context.counted(metrics)
        )

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        column = self._reward.column
        return row if column is None else {**row, "reference": row[column]}

    def _require_numbers(self, numbers: np.ndarray, batch: Batch) -> None:
        """Raises BadData for a number that is none."""
        if result := first_not_finite(Column.fixed(numbers), batch.row_ids):
            where, number = result
            raise BadData(
                f'reward "{self._reward.name}" on {where}: model {self._reward.model} says {number}; look at its '
                "weights, or set training.precision: Float32"
            )

    def _tell(self, num_truncated: int, num_rows: int) -> None:
        """Once: the metric says how many of each step."""
        if num_truncated and not self._has_warned:
            self._has_warned = True
            _log.warning(
                'reward "%s": %d of %d rows are longer than maxTokens %d and are read without their beginning',
                self._reward.name,
                num_truncated,
                num_rows,
                self._options.max_tokens,
            )


def read_whole(batch: Batch, texts: list[Text]) -> Batch:
    """Texts as prompts, each with a response of one token that is never read: its value is that of the whole text."""
    tokens = Column.ragged([text.tokens for text in texts])
    ends = Column.from_lengths(np.zeros(len(texts), np.int64), np.ones(len(texts), np.int64))
    return Batch(batch.row_ids, batch.group_ids, tokens.lengths + 1, {"prompt_ids": tokens, "response_ids": ends})
