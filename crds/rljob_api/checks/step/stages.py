"""Is the DAG one, does every stage get rows, and has it what its catalogue entry says it needs?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.catalogue.stages import REWARD_MODEL, STAGES
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.resolution import ResolvedStage
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.keys import ACTOR, REFERENCE, ROLLOUT_GROUP
from rljob_api.vocabulary.problem import Problem, suggestion

_SOURCES = ("Rollout", "Sample")
_EXAMPLES = {"LogProbs": REFERENCE, REWARD_MODEL: "helpfulness"}
"""Models of stages that have none unless they name it."""


def check_cycle(subject: Subject) -> Iterator[Problem]:
    """A DAG has no cycle."""
    if cycle := subject.resolution.graph.cycle():
        path = subject.stage_path(cycle[0], "after")
        yield problem(
            path, " -> ".join(cycle), "stages wait for each other in a cycle", "Take one of them out of an after."
        )


def check_reachable(subject: Subject) -> Iterator[Problem]:
    """A step begins in Rollout or Sample; nothing else has nothing before it.

    Of stages that no row gets to, the first ones are to blame; names that no stage has are reported elsewhere.
    """
    stages = subject.resolution.stages
    source = min(name for name, stage in stages.items() if stage.generates)
    for name, stage in stages.items():
        if stage.generates and stage.spec.after:
            message = f"a step begins in {stage.spec.run}, so nothing comes before it"
            yield problem(subject.stage_path(name, "after"), list(stage.spec.after), message, "Leave after out.")
        elif not stage.generates and not stage.spec.after:
            message = "unreachable: the stage is not downstream of any Rollout, so no row ever gets to it"
            yield problem(
                subject.stage_path(name, "after"), [], message, f"Put {source}, or a stage after it, into after."
            )


def check_purpose(subject: Subject) -> Iterator[Problem]:
    """A job makes rows and updates a policy."""
    runs = {stage.run for stage in subject.resolution.declared}
    if runs.isdisjoint(_SOURCES):
        name = subject.missing_source
        named = f" and name: {name}, which stages come after" if name else "; the others come after it"
        yield problem("spec.dag.stages", None, "no stage makes rows", f"Add a stage with run: {_SOURCES[0]}{named}.")
    if UPDATE_POLICY not in runs:
        yield problem("spec.dag.stages", None, "no stage updates a policy", f"Add a stage with run: {UPDATE_POLICY}.")


def check_stage_models(subject: Subject) -> Iterator[Problem]:
    """Models per stage, one updater per model, and no model for nothing."""
    updaters: dict[str, str] = {}
    for stage in subject.resolution.stages.values():
        yield from _model_count(subject, stage)
        for model in stage.models if stage.trains else ():
            if (other := updaters.setdefault(model, stage.name)) != stage.name:
                message = f"stage {other} updates model {model} already"
                yield problem(subject.stage_path(stage.name, "models"), model, message, "Keep one of the two stages.")
    used = {model for stage in subject.resolution.stages.values() for model in stage.models}
    if computes_full_kl(subject.spec):
        used |= {subject.spec.beside(REFERENCE, policy) for policy in subject.spec.policies}
    used |= {reward.model for reward in subject.spec.rewards if reward.model is not None}
    for i, spec in enumerate(subject.spec.models):
        if spec.name not in used:
            fix = suggestion(spec.name, used)
            yield problem(f"spec.models[{i}].name", spec.name, "no stage uses the model", f"Leave it out. {fix}")
        elif spec.adapter is not None and spec.name not in subject.resolution.trained_models:
            message = f"no stage trains model {spec.name}, and an adapter that nobody trains changes nothing"
            yield problem(f"spec.models[{i}].adapter", spec.adapter.to_json(), message, "Leave it out.")
    names = [model.name for model in subject.spec.models]
    if subject.spec.dag is None and ACTOR not in names and not subject.spec.agents:
        yield problem("spec.models", names, f"there is no model {ACTOR}", f"Name the policy {ACTOR}.")


def _model_count(subject: Subject, stage: ResolvedStage) -> Iterator[Problem]:
    path, result = subject.stage_path(stage.name, "models"), list(stage.models)
    if stage.built_in is None:
        if result:
            message = "models for a user's own stage are not built yet"
            yield problem(path, result, message, "Leave models out and load what the stage needs in its module.")
    elif len(result) > 1 and stage.built_in.may_share_rows and subject.spec.is_team_of_policies:
        yield from _agents_of_models(subject, stage)
    elif len(result) != stage.built_in.num_models:
        message = f"{stage.spec.run} takes {stage.built_in.num_models or 'no'} model"
        example = stage.built_in.default_model or _EXAMPLES.get(stage.spec.run)
        yield problem(
            path, result, message, f"Write models: [{example}]." if stage.built_in.num_models else "Leave models out."
        )
    elif stage.built_in.default_model is None or stage.spec.models:
        return
    elif (model := stage.models[0]) not in subject.model_names:
        fix = f"Add it to spec.models, or write models: [{subject.model_names[0]}]."
        yield problem(path, None, f"{stage.spec.run} uses model {model} by default, and there is none", fix)


def _agents_of_models(subject: Subject, stage: ResolvedStage) -> Iterator[Problem]:
    """Each agent of a team has one of a stage's models."""
    path, models = subject.stage_path(stage.name, "models"), list(stage.models)
    for at, agent in enumerate(subject.spec.agents):
        mine = [model for model in dict.fromkeys(models) if at in subject.spec.agents_of(model)]
        if len(mine) != 1:
            message = f"{' and '.join(mine) or 'none'} of these is for the rows of agent {agent.name}"
            yield problem(path, models, message, "Write one model for each policy that plays an agent.")
            return


def check_stage_fields(subject: Subject) -> Iterator[Problem]:
    """Fields that mean nothing to this kind of stage."""
    for stage in subject.resolution.stages.values():
        if stage.built_in is None:
            if stage.spec.rename:
                message = "rename is for stages of the catalogue; your own stage says what it reads"
                path = subject.stage_path(stage.name, "rename")
                yield problem(path, stage.spec.rename, message, "Put the columns in reads.")
        else:
            yield from _built_in_fields(subject, stage)


def _built_in_fields(subject: Subject, stage: ResolvedStage) -> Iterator[Problem]:
    spec, entry = stage.spec, STAGES[stage.spec.run]
    for field, value in (("reads", spec.reads), ("writes", spec.writes)):
        if value and not (entry.use == "Generates" and field == "writes"):
            fix = "Leave it out; to read another column use rename."
            path = subject.stage_path(stage.name, field)
            yield problem(path, list(value), f"{entry.name} has its own columns", fix)
    if spec.options:
        path, fix = subject.stage_path(stage.name, "options"), "Leave them out; its settings are in spec."
        yield problem(path, dict(spec.options), f"{entry.name} takes no options", fix)
    if spec.balance != "None" and not entry.can_balance:
        message = f"{entry.name} makes its rows, so there is nothing to balance"
        yield problem(subject.stage_path(stage.name, "balance"), spec.balance, message, "Leave balance out.")
    columns = subject.resolution.columns_of(spec, entry)
    for name in spec.rename:
        if name not in (*columns.reads, *columns.optional):
            path = subject.stage_path(stage.name, f"rename.{name}")
            fix = suggestion(name, columns.reads)
            yield problem(path, name, f"{entry.name} reads no such column", fix)


def check_placement(subject: Subject) -> Iterator[Problem]:
    """Every stage has a worker group, every group a stage, and a trained model one home."""
    placed, groups = subject.placed, ", ".join(subject.group_names)
    homeless = [name for name in subject.resolution.stages if placed[name] is None]
    if homeless and subject.spec.dag is None:
        message = (
            f"with groups {groups} the algorithm's own pipeline needs one that is named {ROLLOUT_GROUP}, and one other"
        )
        yield problem(
            "spec.workerGroups",
            list(subject.group_names),
            message,
            f"Rename a group to {ROLLOUT_GROUP}, or write a dag.",
        )
    elif not subject.resolution.graph.cycle():
        for name in homeless:
            message = "several worker groups, and nothing says in which one the stage runs"
            yield problem(subject.stage_path(name, "group"), None, message, f"Write group: one of {groups}.")
    if not homeless:
        for i, name in enumerate(subject.group_names):
            if name not in placed.values():
                message = "no stage runs in this group, and its accelerators would wait for nothing"
                yield problem(f"spec.workerGroups[{i}].name", name, message, "Leave the group out, or give it a stage.")
    yield from _homes(subject)


def _homes(subject: Subject) -> Iterator[Problem]:
    """Scoring with a model in training happens where it is trained: weights are not sent to a second trainer."""
    stages = subject.resolution.stages.values()
    homes = {m: (s.name, subject.placed[s.name]) for s in stages if s.trains for m in s.models}
    for stage in stages:
        for model in stage.models:
            trainer, home = homes.get(model, (None, None))
            here = subject.placed[stage.name]
            if not stage.generates and None not in (home, here) and here != home:
                message = (
                    f"stage {trainer} trains model {model} in group {home}, so its {stage.spec.run} runs there too"
                )
                yield problem(subject.stage_path(stage.name, "group"), here, message, f"Write group: {home}.")
