"""Two real processes and one must come to the same objectives, gradients, advantages and corrections.

One test for the whole table: every policy loss and what it prepares with every aggregation where rows are divided
unevenly, each with one of them otherwise; every KL estimator, the value loss, every advantage estimator with and
without whitening, every correction.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_worker.algorithms import (
    ADVANTAGES,
    AGGREGATIONS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    estimate_advantages,
    policy_objective,
    value_objective,
)
from rljob_worker.algorithms.masking import tensor_of
from rljob_worker.algorithms.preparation import prepared, with_corrections
from rljob_worker.algorithms.tests.builders import Policy, algorithm, ragged_batch
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.tests.ranks import run_ranks

LENGTHS = [3, 0, 5, 1, 1, 2, 4, 1, 1, 1, 5, 2]
OWNERS = {  # rank of each row
    "uneven": np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]),
    "one rank holds a masked row": np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
    "one rank holds none": np.zeros(12, np.int64),
}
CORRECTIONS = ("TruncatedImportance", "MaskedImportance", "ICEPOP", "SequenceRejection")
COVARIANCE = {"covarianceFraction": 0.3, "covarianceLow": 0.0, "covarianceHigh": 9.0}


def the_batch() -> Batch:
    """Row 4 is masked from end to end; agents and turns for MARFT."""
    batch = ragged_batch(LENGTHS, masked_rows=[4])
    random, total = np.random.default_rng(1), sum(LENGTHS)
    columns = {name: Column.from_lengths(random.integers(0, 3, total), LENGTHS) for name in ("agent_ids", "turn_ids")}
    columns["baseline_rewards"] = Column.fixed(random.normal(size=len(LENGTHS)))
    return batch.with_columns(columns)


def losses(case: str) -> Iterator[tuple[str, AlgorithmSpec]]:
    aggregations = AGGREGATIONS.names()
    for number, name in enumerate(POLICY_LOSSES.names()):
        for aggregation in aggregations if case == "uneven" else [aggregations[number % len(aggregations)]]:
            options = COVARIANCE if name in ("ClipCov", "KLCov") else {}
            yield f"{name} {aggregation}", algorithm(loss={"name": name, "aggregation": aggregation, **options})
    for name in KL_ESTIMATORS.names():
        if name != "Full":  # whose divergence an engine computes; see engines/tests/test_fsdp_ranks.py
            yield name, algorithm(loss={"entropyCoefficient": 0.05}, kl={"estimator": name, "coefficient": 0.2})


def objectives_on(batch: Batch, reduce, case: str = "uneven") -> dict[str, torch.Tensor]:
    """Losses and gradients of every objective of the case, summed over ranks by `reduce`."""
    result = {}
    for name, spec in losses(case):
        ready = prepared(batch, spec, reduce=reduce, seed=3)
        made = set(ready.columns) - set(batch.columns)
        objective = policy_objective(spec, max_response_tokens=5, has_old_log_probs=True, made=made)
        result |= _summed(name, objective, ready, reduce)
    return result | _summed("value", value_objective(algorithm("PPO")), batch, reduce)


def _summed(name: str, objective, batch: Batch, reduce) -> dict[str, torch.Tensor]:
    policy, counts = Policy(), objective.counts(batch)
    over_all = reduce(torch.tensor(list(counts.values()), dtype=torch.float64)).tolist()
    loss, _ = objective(policy.pack(batch, objective.columns), dict(zip(counts, over_all, strict=True)))
    loss.backward()
    return {f"{name} loss": reduce(loss.detach()), f"{name} gradient": reduce(policy.gradient())}


def per_token_on(batch: Batch, reduce) -> dict[str, torch.Tensor]:
    """What a rank makes for its own tokens with sums over all."""
    result = {}
    for name in ADVANTAGES.names():
        for whiten in (False, True):
            spec = algorithm(advantage={"estimator": name, "whiten": whiten})
            estimates, _ = estimate_advantages(batch, spec, max_response_tokens=5, reduce=reduce)
            result[f"{name} whiten={whiten}"] = estimates.advantages
    for weighting in ("ClipFilter", "Uniform"):
        spec = algorithm(advantage={"estimator": "CPGD", "weighting": weighting})
        result[weighting] = estimate_advantages(batch, spec, max_response_tokens=5, reduce=reduce)[0].advantages
    for method in CORRECTIONS:
        ready, _ = with_corrections(batch, algorithm(correction={"method": method}), reduce)
        result[method] = tensor_of(ready["importance_weights"]) * tensor_of(ready["loss_mask"])
    return result


def _sum_over_ranks(local: torch.Tensor) -> torch.Tensor:
    total = local.clone()
    dist.all_reduce(total)
    return total


def on_rank(rank: int) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """By case."""
    parts = {case: the_batch().take(np.flatnonzero(owner == rank)) for case, owner in OWNERS.items()}
    return {
        case: (objectives_on(mine, _sum_over_ranks, case), per_token_on(mine, _sum_over_ranks))
        for case, mine in parts.items()
    }


def test_traps_02_05_and_29_on_two_ranks(tmp_path: Path):
    ranks = run_ranks(2, on_rank, tmp_path)
    whole = the_batch()
    expected, of_tokens = objectives_on(whole, lambda local: local), per_token_on(whole, lambda local: local)
    assert ranks[0]["uneven"][0].keys() == expected.keys()
    for case, owner in OWNERS.items():
        owner_of_token = torch.from_numpy(np.repeat(owner, LENGTHS))
        for rank in range(2):
            summed, mine = ranks[rank][case]
            for name, value in summed.items():
                assert torch.allclose(value, expected[name], rtol=0, atol=1e-10), (case, name)
            if case == "one rank holds a masked row":
                continue  # its group is divided, which estimators do not see
            for name, value in of_tokens.items():
                assert torch.allclose(mine[name], value[owner_of_token == rank], rtol=0, atol=1e-6), (case, name)
