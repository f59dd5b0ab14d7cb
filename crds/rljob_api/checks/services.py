"""Do services have what they need, and do rewards that ask one say which?"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rljob_api.catalogue.services import PREFIX, SHIPPED
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import RewardSpec, ServiceSpec
from rljob_api.vocabulary.model import ApiModel
from rljob_api.vocabulary.problem import Problem, suggestion

SERVED = "rljob_worker.rewards:served"
"""The shipped reward that asks a service for each row's reward."""

_OF_CALLS = {"batchRows": "batch_rows", "concurrency": "concurrency"}
_OF_URLS = {"tokenVariable": "token_variable", "tokenFile": "token_file"}


def check_services(subject: Subject) -> Iterator[Problem]:
    """Applications and how many copies of each; options of shipped ones."""
    for i, service in enumerate(subject.spec.services):
        path = f"spec.services[{i}]"
        yield from _application(path, service)
        yield from _copies(path, service)
        yield from _accelerator(subject, path, service)


def check_calls(subject: Subject) -> Iterator[Problem]:
    """Which service a reward asks, and how."""
    names = [service.name for service in subject.spec.services]
    for i, reward in enumerate(subject.spec.rewards):
        path = f"spec.rewards[{i}]"
        if reward.service is not None and reward.url is not None:
            fix = "Keep one of service and url."
            yield problem(path, [reward.service, reward.url], "a reward asks one service", fix)
        elif reward.service is not None and reward.service not in names:
            yield problem(
                f"{path}.service", reward.service, "there is no such service", suggestion(reward.service, names)
            )
        elif reward.url is not None:
            yield from _url(path, reward)
        yield from _without_service(path, reward)


def _application(path: str, service: ServiceSpec) -> Iterator[Problem]:
    if USER_STAGE.match(service.run) is None:
        message = "a service is an application written as module:application"
        yield problem(f"{path}.run", service.run, message, f"Write for example {PREFIX}reward_model.")
    elif service.run.startswith(PREFIX):
        name = service.run.removeprefix(PREFIX)
        if name not in SHIPPED:
            message = "no such application is shipped"
            yield problem(f"{path}.run", service.run, message, suggestion(name, SHIPPED))
            return
        try:
            SHIPPED[name].model_validate(service.options, by_alias=True, by_name=False)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                yield option_problem(f"{path}.options", name, SHIPPED[name], item)


def option_problem(path: str, owner: str, options: type[ApiModel], error: ErrorDetails) -> Problem:
    """The problem of an option that pydantic refuses; `owner` has these options."""
    place, result, words = error["loc"], error["input"], error["msg"].removeprefix("Value error, ")
    where = ".".join([path, *map(str, place)])
    if error["type"] == "extra_forbidden":
        known = [field.alias or "" for field in options.model_fields.values()]
        return problem(where, result, f"{owner} has no such option", suggestion(str(place[-1]), known))
    if error["type"] == "missing":
        return problem(where, None, f"{owner} needs this option", f"Add {place[-1]}.")
    return problem(where, result if place else None, f"{words[:1].lower()}{words[1:]}", "Change the value.")


def _copies(path: str, service: ServiceSpec) -> Iterator[Problem]:
    replicas, bounds = service.worker_group.replicas, service.autoscaling
    if not service.run.startswith(PREFIX):
        fix = "Say it there, in num_replicas or autoscaling_config, and leave this out."
        for field, result in (
            ("workerGroup.replicas", None if replicas == 1 else replicas),
            ("autoscaling", None if bounds is None else bounds.to_json()),
        ):
            if result is not None:
                message = "an application of your own says in @serve.deployment how many copies it has"
                yield problem(f"{path}.{field}", result, message, fix)
    elif bounds is not None:
        least, most = bounds.min_replicas, bounds.max_replicas
        if replicas != 1:
            fix = "Write autoscaling.initialReplicas, and leave this out."
            yield problem(f"{path}.workerGroup.replicas", replicas, "autoscaling says how many copies there are", fix)
        if most < least:
            message = f"it is less than minReplicas {least}"
            yield problem(f"{path}.autoscaling.maxReplicas", most, message, f"Write {least} or more.")
        elif not least <= (bounds.initial_replicas or least) <= most:
            message = "it is outside of minReplicas and maxReplicas"
            fix = f"Write a number from {least} to {most}."
            yield problem(f"{path}.autoscaling.initialReplicas", bounds.initial_replicas, message, fix)


def _accelerator(subject: Subject, path: str, service: ServiceSpec) -> Iterator[Problem]:
    """Which Ray gives to copies by its own name for it."""
    profile = subject.profiles.get(service.worker_group.accelerator.profile)
    if profile is not None and profile.device != "cpu" and profile.ray_resource is None:
        yield problem(
            f"{path}.workerGroup.accelerator.profile",
            profile.name,
            "Ray knows no such accelerator, so it could not give each copy its own",
            "Write cpu or another profile, serve it elsewhere and give rewards its url, or have an administrator say "
            f"what Ray calls it: acceleratorProfiles.{profile.name}.rayResource in the chart's values.",
        )


def _url(path: str, reward: RewardSpec) -> Iterator[Problem]:
    parts = urlsplit(reward.url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fix = "Write for example https://models.example/judge."
        yield problem(f"{path}.url", reward.url, "this is not the address of a service", fix)
    elif parts.username or parts.password:
        message = "an address with a password would be in every log"
        yield problem(f"{path}.url", parts.hostname, message, "Leave it out, and write tokenVariable or tokenFile.")
    if reward.token_variable is not None and reward.token_file is not None:
        result = [reward.token_variable, reward.token_file]
        yield problem(path, result, "a token comes from one place", "Keep one of tokenVariable and tokenFile.")
    if reward.token_file is not None and not reward.token_file.startswith("/"):
        fix = "Write an absolute path: workers have folders of their own."
        yield problem(f"{path}.tokenFile", reward.token_file, "the path is not absolute", fix)


def _without_service(path: str, reward: RewardSpec) -> Iterator[Problem]:
    """What says something of calls that nobody makes."""
    if reward.run == SERVED and not reward.asks_service:
        fix = "Add service: and a name of spec.services, or url: and an address."
        yield problem(f"{path}.run", reward.run, "it asks a service, and none is named", fix)
    fields = {} if reward.asks_service else _OF_CALLS
    fields |= {} if reward.url is not None else _OF_URLS
    for alias, name in fields.items():
        result = getattr(reward, name)
        if result != type(reward).model_fields[name].default:
            needed = "url" if alias in _OF_URLS else "service or url"
            message = f"without {needed} it says nothing"
            yield problem(f"{path}.{alias}", result, message, f"Add {needed}, or leave it out.")
