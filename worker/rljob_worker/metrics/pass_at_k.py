"""What several responses to one prompt show: how often one of k is right, and how often the one most of k agree on is.

k is 1, 2, 4, … and the number of responses that there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Right = NDArray[np.bool_]
"""[prompts, num_samples]: which responses are right."""


def sizes(num_samples: int) -> list[int]:
    """Every k that is reported for n responses: 6 -> 1, 2, 4, 6."""
    powers = (1 << i for i in range(num_samples.bit_length()))
    return sorted({*powers, num_samples})


def pass_at_k(right: Right, k: int) -> NDArray[np.float64]:
    """The chance that one of k responses, drawn without replacement from those that there are, is right: [prompts].

    1 - C(n - c, k) / C(n, k) for c right ones of n, which is unbiased for k responses of the policy.
    Chen et al., "Evaluating Large Language Models Trained on Code", 2021, https://arxiv.org/abs/2107.03374.
    """
    num_samples = right.shape[1]
    assert 1 <= k <= num_samples, "as many responses as are drawn"
    of_count = [1 - comb(num_samples - c, k) / comb(num_samples, k) for c in range(num_samples + 1)]
    chances: NDArray[np.float64] = np.array(of_count)[right.sum(axis=1)]
    return chances


def maj_at_k(right: Right, answers: Sequence[str | None], k: int) -> NDArray[np.float64]:
    """Whether the answer that most of a prompt's first k responses give is right, 0 or 1: [prompts]. Of answers that
    as many give, the one that comes first counts; where none gives one, nothing is right.

    answers: [prompts * num_samples], what responses answer; equal texts are one answer, and right if the first is. None
    for a response without one, which has no vote.
    Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", 2022,
    https://arxiv.org/abs/2203.11171.
    """
    num_samples = right.shape[1]
    chosen = [_most_common(answers[first : first + k]) for first in range(0, right.size, num_samples)]
    return np.array([at is not None and of[at] for at, of in zip(chosen, right, strict=True)], np.float64)


def _most_common(answers: Sequence[str | None]) -> int | None:
    """Where the answer that most give comes first; Counter keeps equal counts in the order in which they came."""
    votes = Counter(answer for answer in answers if answer is not None).most_common(1)
    return answers.index(votes[0][0]) if votes else None
