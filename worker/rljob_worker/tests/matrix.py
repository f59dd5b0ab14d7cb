"""Every way to run a job, and the few of them that have every two choices together."""

from __future__ import annotations

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
PRECISIONS = {"Transformers": "Float64", "VLLM": "Float32"}
"""The finest that an engine generates in."""
ENGINE = "VLLM" if find_spec("vllm") else "Transformers"
"""That of this environment: VLLM in the one of `make vllm`."""
MAX_WORKERS = 4
"""That train one model."""


@dataclass(frozen=True, slots=True)
class Case:
    """How a job is run. What it learns does not depend on it, but for the algorithm."""

    algorithm: str
    transport: str
    """Of weights."""
    data: int = 1
    """Copies of the model that is trained."""
    context: int = 1
    tensor: int = 1
    expert: int = 0
    """Workers that share experts; 0: of a model that has none."""
    generating: int = 1
    """Workers that a copy is spread over which generates."""

    def __str__(self) -> str:
        ways = f"{self.data}-{self.context}-{self.tensor}-{self.expert}"
        return f"{self.algorithm} {self.transport} {ways} {self.generating}"

    @property
    def model(self) -> Literal["dense", "experts"]:
        return "experts" if self.expert else "dense"

    @property
    def together(self) -> bool:
        """Whether the workers that train also generate."""
        return self.transport == "InProcess"

    @property
    def num_trainers(self) -> int:
        return self.data * self.context * self.tensor

    @property
    def worker_groups(self) -> list[dict[str, Any]]:
        """Colocated in one pod; else a pod that generates, and one for each copy that is trained."""
        if self.together:
            return [_group("train", 1, self.num_trainers)]
        return [_group("rollout", 1, self.generating), _group("train", self.data, self.context * self.tensor)]

    @property
    def is_possible(self) -> bool:
        divides = self.num_trainers % max(1, self.expert) == 0
        return (
            self.num_trainers <= MAX_WORKERS and divides and not (self.together and self.num_trainers % self.generating)
        )

    @property
    def alone(self) -> Case:
        """What it learns, learnt by one worker that does everything."""
        return Case(self.algorithm, "InProcess", expert=min(1, self.expert))


def all_cases(engine: str) -> list[Case]:
    """Of a rollout engine, but for those on one worker that does everything. With VLLM no model has experts: on a CPU
    it loads those of an update wrongly, and begins anew for each (see `vllm.reload_check`)."""
    spread, experts = ((1, 2), (0,)) if engine == "VLLM" else ((1,), (0, 1, 2))
    ways = product(ALGORITHMS, ("InProcess", "DataBuffer", "Collective"), (1, 2), (1, 2), (1, 2), experts, spread)
    return [case for case in starmap(Case, ways) if case.is_possible and case != case.alone]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """Few cases: whatever two choices are together in any case are together in one of these.

    The case that adds most comes first (a greedy cover). The known libraries make rows and filter those that cannot be:
    allpairspy 2.5.1 left out a quarter of the pairs that cases like these have.
    """
    left = set[Any]().union(*map(pairs, cases))
    chosen = []
    while left:
        chosen.append(max(cases, key=lambda case: len(pairs(case) & left)))
        left -= pairs(chosen[-1])
    return chosen


def pairs(case: Case) -> set[Any]:
    """Every two of its choices."""
    return set(combinations(asdict(case).items(), 2))


def chains(cases: Sequence[Case], longest: int) -> list[tuple[Case, ...]]:
    """At most so many cases, each of which goes on with the job where the one before it stopped: of one algorithm and
    model, and of one placement, as worker groups keep their names. One worker has the last word where it can."""
    by_job: dict[tuple[Case, bool], list[Case]] = {}
    for case in cases:
        by_job.setdefault((case.alone, case.together), []).append(case)
    found = []
    for (alone, together), mine in by_job.items():
        last = (alone,) if together else ()
        size = longest - len(last)
        found += [(*mine[first : first + size], *last) for first in range(0, len(mine), size)]
    return found


def job_of(case: Case, engine: str, data: Path, num_steps: int) -> dict[str, Any]:
    """data: has, by the name of a model, one and prompts, as `tiny` makes them."""
    training = {
        # 16 rows of about 30 tokens are two optimizer steps: two micro-batches each on one worker, one each on four
        "tokensPerMicroBatch": 128,
        "miniBatchRows": 8,
        "learningRate": 1.0e-3,
        "precision": PRECISIONS[engine],
        "parallelism": {"context": case.context, "tensor": case.tensor, "expert": max(1, case.expert)},
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
