"""Does every column that a stage reads come from exactly one stage upstream of it?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.columns import model_rewards
from rljob_api.catalogue.stages import REWARD_MODEL
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.resolution import ResolvedStage
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.keys import ACTOR, REFERENCE
from rljob_api.vocabulary.problem import Problem, nearest

INDEX_COLUMNS = ("row_ids", "group_ids", "num_tokens", "row_id", "group_id")
"""These travel with every row, and nobody writes them."""


def check_written_once(subject: Subject) -> Iterator[Problem]:
    """One producer per column of the same rows."""
    for column, producers in subject.resolution.producers.items():
        for name in producers[1:]:
            first = subject.resolution.makers_of(column, name)[0]
            if first != name:
                message = f"stage {first} writes column {column} too"
                fix = "Keep one of the two, or let your own stage write another name and use rename where it is read."
                yield problem(subject.stage_path(name), column, message, fix)
        if column in INDEX_COLUMNS:
            message = f"{column} is an index of rows, which no stage writes"
            yield problem(subject.stage_path(producers[0], "writes"), column, message, "Choose another name.")


def check_produced(subject: Subject) -> Iterator[Problem]:
    """Everything that is read is written upstream, of stages that get rows at all."""
    resolution = subject.resolution
    sources = {name for name, stage in resolution.stages.items() if stage.generates}
    for stage in resolution.stages.values():
        upstream = resolution.graph.ancestors(stage.name)
        for column in stage.columns.reads:
            producers = resolution.makers_of(column, stage.name)
            if not producers:
                yield _nobody(subject, stage.name, column)
            elif sources & {stage.name, *upstream} and not upstream.intersection(producers):
                message = (
                    f"{stage.name} reads column {column}, but {producers[0]} that writes it does not come before it"
                )
                path = subject.stage_path(stage.name, "after")
                yield problem(path, list(stage.spec.after), message, f"Add {producers[0]} to after.")
        yield from _of_some_agents(subject, stage)


def _of_some_agents(subject: Subject, stage: ResolvedStage) -> Iterator[Problem]:
    """A column that is read of rows of agents whose models its stage has not."""
    resolution, agents = subject.resolution, subject.spec.agents
    for column in resolution.reads_of(stage):
        for maker in resolution.makers_of(column, stage.name)[:1]:
            if missing := sorted(resolution.agents_of(stage.name) - resolution.agents_of(maker)):
                name = agents[missing[0]].name
                message = f"{stage.name} reads column {column} of all its rows, and {maker} has none for agent {name}"
                fix = f"List the model for the rows of {name} in {maker}, too."
                yield problem(subject.stage_path(maker, "models"), list(resolution.stages[maker].models), message, fix)


def _nobody(subject: Subject, stage: str, column: str) -> Problem:
    path = subject.stage_path(stage, "reads" if subject.resolution.stages[stage].built_in is None else "")
    if column in INDEX_COLUMNS:
        fix = "Leave it out: it comes with every row."
    elif column in _MAKERS:
        policy = _policy_of(subject, stage)
        reference = subject.spec.beside(REFERENCE, policy)
        fix = f"Add a stage with {_MAKERS[column].format(policy=policy, reference=reference)}."
    elif column in (graded := {model_rewards(model): model for model in subject.model_names}):
        fix = f"Add a stage with run: {REWARD_MODEL} and models: [{graded[column]}], and put it into after."
    elif (match := nearest(column, list(subject.resolution.producers))) is not None:
        fix = f"Did you mean {match}?"
    else:
        fix = f"Written columns: {', '.join(sorted(subject.resolution.producers))}. "
        fix += "A column of the data is carried when the Rollout stage lists it in writes."
    return problem(path, column, f"{stage} reads column {column}, which no stage writes", fix)


def _policy_of(subject: Subject, stage: str) -> str:
    """The policy whose rows a stage works with: in a team the one that it trains."""
    resolved = subject.resolution.stages[stage]
    if subject.spec.is_team_of_policies and resolved.spec.run == UPDATE_POLICY:
        return resolved.models[0]
    policies = [model for name in subject.resolution.sources[stage] for model in subject.resolution.stages[name].models]
    return min(policies, default=ACTOR)


_MAKERS = {
    "rewards": "run: Reward",
    "step_rewards": "run: Reward",
    "advantages": "run: Advantage",
    "values": "run: Values",
    "returns": "run: Advantage and an estimator with a critic",
    "baseline_rewards": "run: Sample in place of Rollout and Reward",
    "row_weights": "run: Sample in place of Rollout and Reward",
    "agent_ids": "your own code that writes, for every response token, which agent wrote it",
    "turn_ids": "your own code that writes, for every response token, in which turn it was written",
    "ref_log_probs": "run: LogProbs and models: [{reference}], or set kl.coefficient to 0",
    "old_log_probs": "run: LogProbs and models: [{policy}]",
    "token_versions": "run: Rollout or run: Sample",
    "prompt_routed_experts": "run: Rollout or run: Sample",
    "routed_experts": "run: Rollout or run: Sample",
}
"""Which stage of the catalogue writes a column that is missing."""
