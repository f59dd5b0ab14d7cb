"""Tasks of the package reasoning-gym as an environment of one turn: a question, an answer, its score.

    environments:
      - name: legs
        run: rljob_worker.conversations.reasoning_gym_environment:ReasoningGym
        options: {dataset: leg_counting, config: {max_animals: 5}}

The seed of a group is the question; a column `dataset` of the data, where the job names it, chooses among the
package's data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_worker.errors import InvalidJob

try:
    import reasoning_gym
except ImportError as error:
    raise InvalidJob(
        "needs the package reasoning-gym, which is not installed: pip install 'rljob[reasoning-gym]' brings it"
    ) from error


class ReasoningGym:
    """A question of a data set of reasoning-gym."""

    def __init__(
        self, dataset: str | None = None, config: Mapping[str, Any] | None = None, tag: str | None = None
    ) -> None:
        """dataset: its name in the package; None: the column `dataset` says.   config: of the data set.   tag: the
        answer is what the policy writes between <tag> and </tag>; None: all that it says."""
        self._dataset, self._config, self._tag = dataset, dict(config or {}), tag
        self._tasks: Any = None

    def reset(self, seed: int, dataset: str | None = None) -> str:
        """The question of a seed."""
        name = dataset or self._dataset
        if name is None:
            raise ValueError(
                "name a data set of reasoning-gym: the option `dataset`, or a column `dataset` of the data"
            )
        self._tasks = reasoning_gym.create_dataset(name, seed=seed, size=1, **self._config)
        return str(self._tasks[0]["question"])

    def step(self, text: str) -> tuple[str, float, bool]:
        """Score of the answer, from 0 to 1."""
        return "", float(self._tasks.score_answer(self._answer(text), self._tasks[0])), True

    def _answer(self, text: str) -> str | None:
        if self._tag is None:
            return text.strip()
        answer: str | None = reasoning_gym.utils.extract_answer(text, self._tag)
        return answer
