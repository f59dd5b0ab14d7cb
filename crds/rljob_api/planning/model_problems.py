"""Whether the models of a plan can do what it asks of them, where their configs are at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.catalogue.services import Classifier
from rljob_api.checks.step.memory import check_data_buffer
from rljob_api.checks.subject import Subject, problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.pipeline.buffer_capacity import LARGEST_WEIGHTS_PART
from rljob_api.planning.parallelism_problems import parallelism_problems
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.planning.weights.flows import GUEST_VERSIONS
from rljob_api.planning.weights.version_sizes import version_sizes
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import covering_quantity, format_bytes


def model_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """shapes: of the models whose configs are at hand, by path."""
    yield from _spreading_problems(plan, shapes)
    yield from position_problems(plan, shapes)
    yield from routing_problems(plan, shapes)
    yield from ability_problems(plan, shapes)
    yield from version_problems(plan, shapes)


def _spreading_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Once for each model that is trained or scored, and for each that generates."""
    engines, states = sorted(plan.engines, key=lambda item: item.trainable), plan.spec.training.optimizer.states
    known = {(engine.path, engine.kind): engine for engine in engines if engine.path in shapes}
    return chain.from_iterable(parallelism_problems(item, shapes[item.path], states) for item in known.values())


def version_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Where several versions exist at once, hosts that send hold all of them; one may be larger than its room."""
    for sizes in version_sizes(plan, shapes):
        needed, room, buffer = sizes.stored_bytes, sizes.room, plan.spec.data_buffer
        if needed is not None and needed > room:
            path = plan.trainer_of(sizes.model).path
            message = (
                f"with rollout.maxStaleness {plan.staleness} up to {plan.num_versions} versions of {path} are kept: "
                f"{format_bytes(needed)} on a host of group {sizes.group}, where weights have {format_bytes(room)}"
            )
            least = covering_quantity(LARGEST_WEIGHTS_PART * needed)
            fix = f"Set dataBuffer.memory to at least {least}, lower rollout.maxStaleness or train on more hosts."
            yield problem("spec.dataBuffer.memory", buffer.memory, message, fix)
        guests = sizes.guests
        if guests is not None and guests.stored_bytes is not None and guests.stored_bytes > guests.room:
            message = (
                f"a pod of elastic group {guests.group} holds {GUEST_VERSIONS} versions of "
                f"{plan.trainer_of(sizes.model).path}: {format_bytes(guests.stored_bytes)}, and weights have half of "
                f"its data buffer, {format_bytes(guests.room)}"
            )
            fix = f"Set dataBuffer.memory to at least {covering_quantity(2 * guests.stored_bytes)}."
            yield problem("spec.dataBuffer.memory", buffer.memory, message, fix)


def ability_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Each once, of all engines whose models are known."""
    result: list[Problem] = []
    for engine in plan.engines:
        shape = shapes.get(engine.path)
        if shape is not None:
            result += _of_tokens(plan.spec, engine, shape) if engine.kind == "Rollout" else ()
            result += _without_experts(plan, engine) if shape.experts is None else _with_experts(plan.spec, engine)
    yield from dict.fromkeys(result)


def _without_experts(plan: Plan, engine: EnginePlan) -> Iterator[Problem]:
    coefficient = plan.spec.training.router_aux_loss_coefficient
    if coefficient and engine.trainable and not plan.has_value_head(engine):
        message = f"this is for models with experts, and {engine.path} has none"
        yield problem("spec.training.routerAuxLossCoefficient", coefficient, message, "Leave it out.")


def _with_experts(spec: RLJobSpec, engine: EnginePlan) -> Iterator[Problem]:
    if engine.adapter is not None:
        place = next(i for i, model in enumerate(spec.models) if model.adapter is not None)
        message = f"adapters of models with experts are not built yet, and {engine.path} has experts"
        yield problem(f"spec.models[{place}].adapter", {"rank": engine.adapter.rank}, message, "Leave it out.")
    if spec.training.compile and engine.kind == "Train":
        message = f"models with experts, as {engine.path}, are not compiled: every pass sends its experts other numbers"
        yield problem("spec.training.compile", True, f"{message} of tokens", "Write false.")
    recorded = spec.rollout.engine_options.enforce_eager is False
    if recorded and engine.kind == "Rollout" and not ROLLOUT_ENGINES[engine.library].records_experts:
        message = f"steps of a model with experts, as {engine.path}, are not recorded, since each computes others"
        yield problem("spec.rollout.engineOptions.enforceEager", False, message, "Leave it out.")


def _of_tokens(spec: RLJobSpec, engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    for i, token in enumerate(spec.rollout.stop_token_ids):
        if token >= shape.vocabulary:
            message = f"the tokens of {engine.path} are 0 to {shape.vocabulary - 1}"
            yield problem(f"spec.rollout.stopTokenIds[{i}]", token, message, "Write one of them, or leave it out.")


def position_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Rows that may be longer than a model that reads prompts and responses allows; texts, for a reward model."""
    for path in dict.fromkeys(engine.path for engine in plan.engines if not plan.is_reward_model(engine)):
        limit = shapes[path].max_positions if path in shapes else None
        if limit is not None and plan.spec.longest_row > limit:
            yield _too_long(plan.spec, path, limit)
    for i, reward in enumerate(plan.spec.rewards):
        path = "" if reward.model is None else plan.spec.source_of(reward.model).path
        limit = shapes[path].max_positions if path in shapes else None
        longest = Classifier.model_validate(reward.options).max_tokens if path else 0
        if limit is not None and longest > limit:
            message = f"model {path} reads {limit} positions (max_position_embeddings)"
            yield problem(f"spec.rewards[{i}].options.maxTokens", longest, message, f"Write {limit} or less.")


def _too_long(spec: RLJobSpec, path: str, limit: int) -> Problem:
    """Prompts give way, where responses alone have room."""
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens
    if response < limit:
        field, result, fits = "data.maxPromptTokens", prompt, f"{limit - response} or less"
    else:
        field, result = "rollout.maxResponseTokens", response
        fits = f"{limit - prompt} or less" if prompt < limit else "less, and lower data.maxPromptTokens"
    both = f", or set rollout.maxSequenceTokens: {limit}, which shortens responses to long prompts"
    return problem(
        f"spec.{field}",
        result,
        f"prompts of up to {prompt} tokens and responses of up to {response} make rows of up to {spec.longest_row}, "
        f"and model {path} reads {limit} positions (max_position_embeddings)",
        f"Write {fits}{both if prompt < limit else ''}.",
    )


def routing_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Problems of router replay with every policy that generates."""
    if plan.spec.training.router_replay == "None":
        return
    most = 0
    for path in dict.fromkeys(engine.path for engine in plan.engines if engine.kind == "Rollout"):
        shape = shapes.get(path)
        if shape is not None and shape.experts is None:
            message = f"this is for models with experts, and {path} has none"
            yield problem("spec.training.routerReplay", plan.spec.training.router_replay, message, "Leave it out.")
        elif shape is not None and shape.experts is not None:
            most = max(most, shape.experts.route_bytes(shape.layers))
    if most:
        yield from check_data_buffer(Subject(plan.spec, {}), most)
