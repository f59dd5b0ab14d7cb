"""The endpoint of a worker's policy, and what agents are told of a trajectory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.v1alpha1 import ConversationSpec
from rljob_api.vocabulary import keys
from rljob_worker.conversations.picture_parts import as_json
from rljob_worker.conversations.task import Task
from rljob_worker.endpoint.sampling_rules import SamplingRules
from rljob_worker.endpoint.server import AgentEndpoint, EndpointSettings
from rljob_worker.endpoint.task_offers import TaskOffers


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """What agents ask, and how its turns are drawn."""

    name: str
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    gives_top_log_probs: bool = False
    """As in `SamplingRules`."""


def endpoint_of(
    conversation: ConversationSpec, policy: ServedPolicy, place: int, offers: TaskOffers | None = None
) -> AgentEndpoint:
    """Not started yet. place: of the worker among those of its host."""
    spec = conversation.endpoint
    rules = SamplingRules(
        spec.other_sampling,
        temperature=policy.temperature,
        stop=policy.stop,
        stop_token_ids=policy.stop_token_ids,
        passed_over=frozenset(spec.passed_over),
        gives_top_log_probs=policy.gives_top_log_probs,
    )
    names = tuple(dict.fromkeys([policy.name, *spec.models]))
    port = 0 if spec.port is None else spec.port + place
    folder = Path(os.environ[keys.ENV_TLS_DIR]) if spec.listen == "Pods" else None
    return AgentEndpoint(EndpointSettings(names, rules, spec.wait_seconds, port=port, certificates=folder), offers)


def described(task: Task) -> dict[str, Any]:
    """A task as JSON. Raises BadData for a picture in a form that is not read."""
    return {
        "messages": as_json(task.messages),
        "columns": dict(task.columns),
        "seed": task.seed,
        "group": task.group,
        "member": task.member,
    }
