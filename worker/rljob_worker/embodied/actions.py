"""Action tokens and the continuous actions that they stand for.

A decision is `chunk` actions of `dimensions` numbers; each number is one token, the word of a bin between -1 and 1, and
stands for the centre of that bin. Of n words the first is the lowest bin; OpenVLA counts down, and has one bin less:

                  words      first   first + 1   ...  first + n - 2  first + n - 1
    Ascending     n bins     0       1                n - 2          n - 1
    OpenVLA       n - 1      n - 2   n - 2            1              0

Statistics of a data set turn centres in [-1, 1] into the units of its robot: low + (x + 1) / 2 (high - low) of its
1st and 99th percentile, where its mask says so. Kim et al., OpenVLA, https://arxiv.org/abs/2406.09246.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Indices
from rljob_worker.embodied.observation import Actions
from rljob_worker.errors import BadData, InvalidJob

_EPSILON = 1e-8
"""What is added to the width of a dimension, as the published models do."""
_BOUNDS = (("q01", "q99"), ("min", "max"))
"""Names of the bounds in statistics, the first that are there."""


BinOrder = Literal["Ascending", "OpenVLA"]
"""Which bins words are of."""


@dataclass(frozen=True, slots=True)
class ActionStatistics:
    """The actions of a data set, as a policy's config has them."""

    low: NDArray[np.float64]
    """[dimensions]"""
    high: NDArray[np.float64]
    """[dimensions]"""
    mask: NDArray[np.bool_]
    """[dimensions]: which of them are normalised; a gripper that is open or closed is not."""

    @staticmethod
    def of(norm_stats: Mapping[str, Any], key: str | None, dimensions: int) -> ActionStatistics:
        """norm_stats: by data set, {"action": {"q01": [...], "q99": [...], "mask": [...]}}, or with min and max. key:
        which; None: the only one. Raises InvalidJob, listing those there are, for one that is not there."""
        there = ", ".join(sorted(norm_stats)) or "none at all"
        if key is None and len(norm_stats) == 1:
            key = next(iter(norm_stats))
        if key is None:
            raise InvalidJob(f"config.json: norm_stats has statistics of {there}; name the data set to act by")
        if key not in norm_stats:
            raise InvalidJob(f"config.json: norm_stats has no statistics of {key!r}; there are {there}")
        return ActionStatistics._of_actions(norm_stats[key], key, dimensions)

    @staticmethod
    def _of_actions(statistics: Any, key: str, dimensions: int) -> ActionStatistics:
        actions = statistics.get("action") if isinstance(statistics, Mapping) else None
        names = next((pair for pair in _BOUNDS if isinstance(actions, Mapping) and pair[0] in actions), None)
        if actions is None or names is None:
            raise InvalidJob(f"config.json: norm_stats of {key!r} has no action with q01 and q99, or min and max")
        low, high = (np.asarray(actions.get(name, ()), np.float64) for name in names)
        mask = np.asarray(actions.get("mask", np.ones(dimensions)), np.bool_)
        if not low.shape == high.shape == mask.shape == (dimensions,):
            raise InvalidJob(
                f"config.json: norm_stats of {key!r} has {low.size} {names[0]}, {high.size} {names[1]} and a mask of "
                f"{mask.size}, and an action of the model has {dimensions} dimensions"
            )
        return ActionStatistics(low, high, mask)

    @staticmethod
    def unit(dimensions: int) -> ActionStatistics:
        """Actions stay between -1 and 1."""
        return ActionStatistics(-np.ones(dimensions), np.ones(dimensions), np.zeros(dimensions, np.bool_))

    def denormalised(self, actions: Actions) -> Actions:
        """[actions, dimensions] in the units of the data set, from those between -1 and 1."""
        wide = 0.5 * (actions + 1.0) * (self.high - self.low + _EPSILON) + self.low
        return np.where(self.mask, wide, actions)

    def normalised(self, actions: Actions) -> Actions:
        """[actions, dimensions] between -1 and 1, from those in the units of the data set."""
        narrow = 2.0 * (actions - self.low) / (self.high - self.low + _EPSILON) - 1.0
        return np.clip(np.where(self.mask, narrow, actions), -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """Words of one policy, and the actions of one data set."""

    first_word: int
    bins: int
    chunk: int
    """Actions of a decision."""
    statistics: ActionStatistics
    order: BinOrder = "Ascending"

    @property
    def dimensions(self) -> int:
        return len(self.statistics.low)

    @property
    def num_tokens(self) -> int:
        return self.chunk * self.dimensions

    @property
    def words(self) -> Indices:
        """int64 [bins], ascending."""
        return np.arange(self.first_word, self.first_word + self.bins)

    def actions(self, tokens: Indices) -> Actions:
        """float64 [chunk, dimensions], from int64 [chunk x dimensions]. Raises BadData for tokens that are not words of
        a whole decision."""
        if len(tokens) != self.num_tokens:
            raise BadData(f"a decision has {self.num_tokens} action tokens, and {len(tokens)} came")
        places = np.asarray(tokens, np.int64) - self.first_word
        if ((places < 0) | (places >= self.bins)).any():
            raise BadData(
                f"a decision has token {int(tokens[((places < 0) | (places >= self.bins)).argmax()])}, and action "
                f"words are {self.first_word} to {self.first_word + self.bins - 1}"
            )
        centres = (self._edges[:-1] + self._edges[1:]) / 2.0
        values = centres[self._bins_of(places)].reshape(self.chunk, self.dimensions)
        return self.statistics.denormalised(values)

    def tokens(self, actions: Actions) -> Indices:
        """int64 [chunk x dimensions]: the words of the bins that actions [chunk, dimensions] lie in, as `actions` makes
        them; what is out of bounds is in the outermost."""
        values = self.statistics.normalised(np.asarray(actions, np.float64)).ravel()
        bins = np.clip(np.digitize(values, self._edges) - 1, 0, len(self._edges) - 2)
        places = bins if self.order == "Ascending" else self.bins - 1 - bins
        return places.astype(np.int64) + self.first_word

    @property
    def _edges(self) -> NDArray[np.float64]:
        return np.linspace(-1.0, 1.0, self.bins + (self.order == "Ascending"))

    def _bins_of(self, places: Indices) -> Indices:
        return places if self.order == "Ascending" else np.minimum(self.bins - 1 - places, self.bins - 2)
