"""Jobs for tests: a small valid one, changed by `--set` overrides."""

from __future__ import annotations

from pathlib import Path

from rljob_api.loading.load import parse_job
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import InvalidJobError, Problem

FULL_EXAMPLE = (Path(__file__).parent / "full_example.yaml").read_text()
"""The example of the design with every field."""

SMALL = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  models: [{name: actor, path: models/tiny}]
  data: {train: [{path: train.parquet}], batchSize: 8, maxPromptTokens: 16}
  rewards: [{name: correct, run: "my_rewards:correct", column: answer}]
  algorithm: {name: GRPO, groupSize: 4}
  rollout: {maxResponseTokens: 32}
  stop: {steps: 10}
"""

TWO_GROUPS = ("workerGroups=[{name: train, replicas: 2}, {name: rollout, replicas: 4}]",)
PPO = ("algorithm={name: PPO}",)


def make_job(*overrides: str) -> RLJob:
    """The small job with overrides, valid."""
    return parse_job(SMALL, overrides)


def make_plan(*overrides: str) -> Plan:
    """The plan of the small job with overrides."""
    return plan(make_job(*overrides))


def problems(*overrides: str, text: str = SMALL) -> list[Problem]:
    """What is wrong with the small job after overrides; empty when nothing is.

    Every problem says what is wrong and, in a sentence, what to write.
    """
    try:
        parse_job(text, overrides)
    except InvalidJobError as error:
        assert all(problem.message and problem.fix.endswith((".", "?")) for problem in error.problems), error
        return list(error.problems)
    return []


def dag(*stages: str) -> str:
    """An override with these stages, each a YAML flow mapping without its braces."""
    return "dag={stages: [" + ", ".join("{" + stage + "}" for stage in stages) + "]}"


ROLLOUT = "name: rollout, run: Rollout"
REWARD = "name: reward, run: Reward, after: [rollout]"
REFERENCE = "name: reference, run: LogProbs, models: [reference], after: [rollout]"
ADVANTAGE = "name: advantage, run: Advantage, after: [reward]"
UPDATE = "name: update, run: UpdatePolicy, after: [advantage, reference]"
GRPO = (ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE)

TWO_POLICIES = (
    "models=[{name: left, path: models/left}, {name: right, path: models/right}]",
    "rewards=[{name: correct, run: 'm:correct', column: answer}, {name: short, run: 'm:short'}]",
    "algorithm.kl.coefficient=0",
)
"""Models, rewards and algorithm of a job whose dag has two pipelines."""


def pipeline(policy: str, *rewards: str) -> tuple[str, ...]:
    """Rollout, reward, advantage and update of one policy. rewards: those that are its own, or all."""
    chosen = f", rewards: [{', '.join(rewards)}]" if rewards else ""
    return (
        f"name: rollout_{policy}, run: Rollout, models: [{policy}]",
        f"name: reward_{policy}, run: Reward, after: [rollout_{policy}]{chosen}",
        f"name: advantage_{policy}, run: Advantage, after: [reward_{policy}]",
        f"name: update_{policy}, run: UpdatePolicy, models: [{policy}], after: [advantage_{policy}]",
    )
