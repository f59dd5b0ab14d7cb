"""Every way to run a job, and the few of them that have every two choices together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import combinations, product, starmap
from pathlib import Path
from typing import Any, Literal

from rljob_worker.tests.jobs import PPO, make_job

ALGORITHMS: dict[str, dict[str, Any]] = {
    "GRPO": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}},
    "PPO": PPO | {"groupSize": 4},
    "DAPO": {"name": "DAPO", "groupSize": 4},
}
TRANSPORTS = ("InProcess", "DataBuffer", "Collective")
LIBRARIES = ("FSDP", "Megatron")
PRECISIONS = {"Transformers": "Float64", "VLLM": "Float32"}
"""The finest that an engine generates in."""
ENGINE = "VLLM" if find_spec("vllm") else "Transformers"
"""That of this environment: VLLM in the one of `make vllm`."""
MAX_WORKERS = 4
"""That train one model."""
_SEED, _START = 245, 30
"""Of the order in which cases are looked at: of the first 500, that whose choice of pairs is cheapest. What the start
of a job counts for, in workers."""


@dataclass(frozen=True, slots=True)
class Case:
    """How a job is run. What it learns does not depend on it, except on the algorithm."""

    algorithm: str
    transport: str
    """Of weights."""
    library: str = "FSDP"
    """Whose layers are trained."""
    data: int = 1
    """Copies of the model that is trained."""
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 0
    """Workers that share experts; 0: of a model that has none."""
    generating: int = 1
    """Workers that a copy is spread over which generates."""

    def __str__(self) -> str:
        ways = f"{self.data}-{self.context}-{self.tensor}-{self.pipeline}-{self.expert}"
        return f"{self.algorithm} {self.transport} {self.library} {ways} {self.generating}"

    @property
    def model(self) -> Literal["dense", "experts"]:
        return "experts" if self.expert else "dense"

    @property
    def job(self) -> tuple[str, str, str]:
        """What it has in common with those that may go on with it, except for where it generates."""
        return self.algorithm, self.model, self.library

    @property
    def together(self) -> bool:
        """Whether the workers that train also generate."""
        return self.transport == "InProcess"

    @property
    def num_trainers(self) -> int:
        return self.data * self.context * self.tensor * self.pipeline

    @property
    def num_workers(self) -> int:
        return self.num_trainers + (0 if self.together else self.generating)

    @property
    def worker_groups(self) -> list[dict[str, Any]]:
        """Colocated in one pod; else a pod that generates, and one for each copy that is trained."""
        if self.together:
            return [_group("train", 1, self.num_trainers)]
        return [_group("rollout", 1, self.generating), _group("train", self.data, self.num_trainers // self.data)]

    @property
    def is_possible(self) -> bool:
        if self.pipeline > 1 and self.library != "Megatron":
            return False  # FSDP has no stages
        divides = self.num_trainers // self.pipeline % max(1, self.expert) == 0
        return (
            self.num_trainers <= MAX_WORKERS and divides and not (self.together and self.num_trainers % self.generating)
        )

    @property
    def alone(self) -> Case:
        """What it learns, learnt by one worker that does everything."""
        return Case(self.algorithm, "InProcess", expert=min(1, self.expert))


def all_cases(engine: str) -> list[Case]:
    """All cases of a rollout engine, except those that all others are compared with. Only VLLM spreads a copy over
    workers."""
    spread = (1, 2) if engine == "VLLM" else (1,)
    ways = product(ALGORITHMS, TRANSPORTS, LIBRARIES, (1, 2), (1, 2), (1, 2), (1, 2), (0, 1, 2), spread)
    return [case for case in starmap(Case, ways) if case.is_possible and case != case.alone]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """Few cases: whatever two choices are together in any case are together in one of these.

    The known libraries make rows and filter those that cannot be: allpairspy 2.5.1 left out a quarter of the pairs that
    cases like these have.

    The case that adds most for what it costs comes first, and what later ones made superfluous goes.
    """
    order = {case: pairs(case) for case in random.Random(_SEED).sample(cases, len(cases))}
    left = set[Any]().union(*order.values())
    chosen: list[Case] = []
    while left:
        chosen.append(max(order, key=lambda case: len(order[case] & left) / (_START + case.num_workers)))
        left -= order[chosen[-1]]
    for case in tuple(chosen):
        others = [other for other in chosen if other != case]
        if order[case] <= set[Any]().union(*map(order.__getitem__, others)):
            chosen = others
    return chosen


def pairs(case: Case) -> set[Any]:
    """Every two of its choices."""
    return set(combinations(asdict(case).items(), 2))


def chains(cases: Sequence[Case], longest: int) -> list[tuple[Case, ...]]:
    """At most this many cases, each of which goes on with the job where the one before it stopped: of one algorithm and
    model, which are beside each other, of one library, as checkpoints are, and of one placement, as worker groups keep
    their names. Layouts grow in one chain and shrink in the next."""
    by_job: dict[tuple[str, str, str, bool], list[Case]] = {}
    for case in cases:
        by_job.setdefault((*case.job, case.together), []).append(case)
    result = []
    for _, mine in sorted(by_job.items()):
        count = -(-len(mine) // longest)
        result += [tuple(mine[index::count][:: -1 if index % 2 else 1]) for index in range(count)]
    return result


def job_of(case: Case, engine: str, data: Path, num_steps: int) -> dict[str, Any]:
    """data: has, by the name of a model, one and prompts, as `tiny` makes them."""
    training = {
        # 16 rows of about 30 tokens are two optimizer steps: two micro-batches each on one worker, one each on four
        "tokensPerMicroBatch": 128,
        "miniBatchRows": 8,
        "learningRate": 1.0e-3,
        "precision": PRECISIONS[engine],
        "engine": case.library,
        "parallelism": {
            "context": case.context,
            "tensor": case.tensor,
            "pipeline": case.pipeline,
            "expert": max(1, case.expert),
        },
    }
    return make_job(
        data / case.model,
        algorithm=ALGORITHMS[case.algorithm],
        workerGroups=case.worker_groups,
        weightSync={"transport": case.transport},
        training=training,
        rollout={"engine": engine, "maxResponseTokens": 12, "parallelism": {"tensor": case.generating}},
        validation={"maxRows": 8, "everySteps": 1},  # also where a run stops: what the step taught is generated with
        checkpoint={"everySteps": 1},
        stop={"steps": num_steps},
    )


def _group(name: str, replicas: int, count: int) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "accelerator": {"profile": "cpu", "count": count}}
