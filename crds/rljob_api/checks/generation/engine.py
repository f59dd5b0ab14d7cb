"""Can the library that generates do what the job asks of it?  Of a library that is not there only that is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES, DeclaredRolloutEngine
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.meshes import num_workers_of
from rljob_api.pipeline.resolution import assign_groups
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem


def check_engine(subject: Subject) -> Iterator[Problem]:
    """That there is such an engine, and that it has what the job asks of it."""
    spec = subject.spec
    if problems := list(ROLLOUT_ENGINES.problems("spec.rollout.engine", spec.rollout.engine)):
        yield from problems
        return
    engine = ROLLOUT_ENGINES[spec.rollout.engine]
    yield from _options(engine, subject)
    yield from _parallelism(engine, spec)
    yield from _routes(engine, spec)
    yield from _continuing(engine, spec)
    yield from _sampling(engine, spec)
    yield from _server(engine, subject)


def _options(engine: DeclaredRolloutEngine, subject: Subject) -> Iterator[Problem]:
    """Options that the engine has, where it runs."""
    options = subject.spec.rollout.engine_options
    fields = type(options).model_fields
    for name, info in fields.items():
        if (result := getattr(options, name)) is not None and name not in engine.options:
            fix = f"Leave it out{_or_another(item for item in _built_in() if name in item.options)}."
            path, message = (
                f"spec.rollout.engineOptions.{info.alias}",
                f"rollout.engine {engine.name} has no such option",
            )
            yield problem(path, result, message, fix)
    for refused_option in engine.refused_options(options, _devices(subject), subject.spec.longest_row):
        path = f"spec.rollout.engineOptions.{fields[refused_option.option].alias}"
        yield problem(path, getattr(options, refused_option.option), refused_option.message, refused_option.fix)


def _parallelism(engine: DeclaredRolloutEngine, spec: RLJobSpec) -> Iterator[Problem]:
    """Whether the engine can spread a copy over workers."""
    tensor = spec.rollout.parallelism.tensor
    if tensor > 1 and not engine.spreads:
        message = f"rollout.engine {engine.name} generates with a whole copy of the model on every worker"
        fix = f"Write 1{_or_another(item for item in _built_in() if item.spreads)}."
        yield problem("spec.rollout.parallelism.tensor", tensor, message, fix)


def _continuing(engine: DeclaredRolloutEngine, spec: RLJobSpec) -> Iterator[Problem]:
    """Whether the engine can go on with a response that an earlier step began."""
    partial = spec.rollout.partial
    if partial is not None and not engine.continues:
        message = f"rollout.engine {engine.name} cannot go on with a response that an earlier step began"
        fix = f"Leave it out{_or_another(item for item in _built_in() if item.continues)}."
        yield problem("spec.rollout.partial", partial.model_dump(by_alias=True), message, fix)


def _routes(engine: DeclaredRolloutEngine, spec: RLJobSpec) -> Iterator[Problem]:
    """Whether the engine says which experts computed a token."""
    if spec.training.router_replay == "Rollout" and not engine.gives_routes:
        message = f"rollout.engine {engine.name} does not say here which experts computed a token"
        message += f": {engine.why_no_routes}" if engine.why_no_routes else ""
        fix = f"Write None{_or_another(item for item in _built_in() if item.gives_routes)}."
        yield problem("spec.training.routerReplay", "Rollout", message, fix)


def _sampling(engine: DeclaredRolloutEngine, spec: RLJobSpec) -> Iterator[Problem]:
    """Temperatures and number formats that the engine has."""
    known = engine.temperatures
    temperatures = (("rollout", spec.rollout.temperature), ("validation", spec.validation.temperature))
    for section, temperature in temperatures:
        path = f"spec.{section}.temperature"
        other = _or_another(item for item in _built_in() if item.temperatures.have(temperature))
        if temperature > known.highest:
            message = f"{engine.name} samples at temperatures up to {known.highest:g}"
            yield problem(path, temperature, message, f"Write less{other}.")
        elif not known.have(temperature):
            message = f"{engine.name} samples at temperatures from {known.lowest:g} on: {known.below}"
            yield problem(path, temperature, message, f"Write {known.lowest:g} or more{other}.")
    precision = spec.training.precision
    if precision != "Auto" and precision not in engine.precisions:
        other = _or_another(item for item in _built_in() if precision in item.precisions)
        fix = f"Write {' or '.join(engine.precisions)}{other}."
        message = f"{engine.name} generates in {' and '.join(engine.precisions)} only"
        yield problem("spec.training.precision", precision, message, fix)


def _server(engine: DeclaredRolloutEngine, subject: Subject) -> Iterator[Problem]:
    """A server for each worker that generates, where the engine asks servers; and nothing that one cannot do."""
    spec = subject.spec
    server, path = spec.rollout.server, "spec.rollout.server"
    if not engine.is_remote:
        if server is not None:
            message = f"rollout.engine {engine.name} generates in the workers"
            yield problem(path, server.urls[0], message, "Leave it out, or write rollout.engine: HTTP.")
        return
    if server is None:
        yield problem(path, None, f"rollout.engine {engine.name} asks servers", "Name routes, urls, weightsDirectory.")
        return
    if len(set(server.urls)) < len(server.urls):
        message = "one server is named twice, and each is given weights by one worker"
        yield problem(f"{path}.urls", list(server.urls), message, "Name a server for each worker.")
    homes = _homes(subject)
    elastic = [group.name for group in spec.worker_groups if group.name in homes and group.elastic is not None]
    if elastic:
        message = f"worker group {elastic[0]} is elastic, and servers are named by the rank of a worker"
        yield problem("spec.rollout.engine", engine.name, message, "Leave elastic out, or take another engine.")
        return
    if len(spec.policies) > 1:
        message = f"the job trains {len(spec.policies)} policies, and a server has one model"
        yield problem("spec.rollout.engine", engine.name, message, "Take another engine.")
    workers = sum(num_workers_of(spec, home) for home in homes)
    if homes and len(server.urls) != workers:
        message = f"there are {len(server.urls)}, and {workers} workers generate"
        yield problem(f"{path}.urls", list(server.urls), message, "Name one for each worker, in the order of ranks.")


def _built_in() -> Iterable[DeclaredRolloutEngine]:
    """Those that a fix may name: of servers the rest of it would be missing."""
    return [engine for engine in ROLLOUT_ENGINES.built_in.values() if not engine.is_remote]


def _or_another(engines: Iterable[DeclaredRolloutEngine]) -> str:
    """The rest of a fix. engines: that have what the job asks for."""
    names = " or ".join(engine.name for engine in engines)
    return f", or rollout.engine: {names}" if names else ""


def _devices(subject: Subject) -> set[str]:
    """Device types of the groups that generate."""
    homes = _homes(subject)
    profiles = {group.name: group.accelerator.profile for group in subject.spec.worker_groups}
    known = (subject.profiles.get(profiles[home]) for home in homes if home in profiles)
    return {profile.device for profile in known if profile is not None}


def _homes(subject: Subject) -> set[str]:
    """The groups that generate."""
    placed = assign_groups(subject.resolution)
    homes = (placed[name] for name, stage in subject.resolution.stages.items() if stage.generates)
    return {home for home in homes if home is not None}
