"""Two real processes and one must come to the same objective, gradient and whitened advantages."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rljob_worker.algorithms import policy_objective, value_objective
from rljob_worker.algorithms.advantages import whiten
from rljob_worker.algorithms.masking import tensor_of
from rljob_worker.algorithms.registries import AGGREGATIONS
from rljob_worker.algorithms.tests.builders import Policy, algorithm, ragged_batch
from rljob_worker.batch import Batch

LENGTHS = [3, 0, 5, 1, 1, 2, 4, 1, 1, 1, 5, 2]
OWNERS = [
    np.array([0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1]),
    np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),  # rank 1 has one row, and that is fully masked
    np.zeros(12, np.int64),  # rank 1 has none
]


def objectives():
    loss = {"entropyCoefficient": 0.05}
    for name in AGGREGATIONS.names():
        spec = algorithm(loss={**loss, "aggregation": name}, kl={"coefficient": 0.2})
        yield policy_objective(spec, max_response_tokens=5, has_old_log_probs=True)
    yield value_objective(algorithm("PPO"))


def everything(batch: Batch, reduce) -> list[torch.Tensor]:
    """Losses and gradients of every objective, summed over ranks by `reduce`."""
    results = []
    for objective in objectives():
        policy = Policy()
        counts = objective.counts(batch)
        over_all = reduce(torch.tensor(list(counts.values()), dtype=torch.float64)).tolist()
        loss, _ = objective(policy.pack(batch, objective.columns), dict(zip(counts, over_all, strict=True)))
        loss.backward()
        results += [reduce(loss.detach()), reduce(policy.gradient())]
    return results


def whitened(batch: Batch, reduce) -> torch.Tensor:
    return whiten(tensor_of(batch["advantages"]), tensor_of(batch["response_mask"]), reduce)


def _sum_over_ranks(local: torch.Tensor) -> torch.Tensor:
    total = local.clone()
    dist.all_reduce(total)
    return total


def _rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    try:
        for split, owner in enumerate(OWNERS):
            mine = ragged_batch(LENGTHS, masked_rows=[4]).take(np.flatnonzero(owner == rank))
            found = everything(mine, _sum_over_ranks), whitened(mine, _sum_over_ranks)
            torch.save(found, f"{directory}/{split}-{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_traps_2_5_and_29_on_two_ranks(tmp_path: Path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    batch = ragged_batch(LENGTHS, masked_rows=[4])
    expected = everything(batch, lambda local: local)
    expected_whitened = whitened(batch, lambda local: local)
    for split, owner in enumerate(OWNERS):
        owner_of_token = torch.from_numpy(np.repeat(owner, LENGTHS))
        for rank in range(2):
            found, mine = torch.load(tmp_path / f"{split}-{rank}.pt")
            for one, two in zip(expected, found, strict=True):
                assert torch.allclose(one, two, rtol=0, atol=1e-10)
            assert torch.allclose(mine, expected_whitened[owner_of_token == rank], rtol=0, atol=1e-10)
