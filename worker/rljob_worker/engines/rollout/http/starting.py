"""From a plan to an engine whose server answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.vocabulary import keys
from rljob_worker.engines.models import checkpoint_tensors, empty_policy
from rljob_worker.engines.rollout.http.connection import ServerConnection
from rljob_worker.engines.rollout.http.engine import HTTPRollout, RemoteModel
from rljob_worker.engines.rollout.http.routes import ROUTES
from rljob_worker.engines.rollout.http.weight_folder import WeightFolder
from rljob_worker.engines.rollout.limits import Limits
from rljob_worker.engines.rollout.vocabulary import Vocabulary


def start(
    plan: Plan,
    engine: EnginePlan,
    dtype: torch.dtype,
    rank: int,
    end_token_ids: tuple[int, ...],
    vocabulary: Vocabulary | None,
    frozen: Callable[[str], bool],
) -> HTTPRollout:
    """An engine without weights over the server of one rank, which has answered. dtype: of the files of weights. Raises
    InvalidJob for a server that refuses us, EngineBroken for one that is not there."""
    server = plan.spec.rollout.server
    assert server is not None, "the planner has looked"
    model, routes = empty_policy(engine.path, dtype), ROUTES[server.routes]
    limits = Limits(
        model.config.get_text_config().vocab_size, plan.spec.longest_row, ROLLOUT_ENGINES["HTTP"].temperatures
    )
    named = model.named_parameters(remove_duplicate=False)
    served = RemoteModel(dict(checkpoint_tensors(named)), dtype, end_token_ids, limits, vocabulary, frozen)
    token = os.environ.get(keys.ROLLOUT_SERVER_TOKEN) or None
    connection = ServerConnection(server.urls[rank], token, server.timeout_seconds)
    try:
        connection.require_healthy(routes.health, server.timeout_seconds)
    except BaseException:
        connection.close()
        raise
    folder = WeightFolder(Path(server.weights_directory) / f"{plan.job}-{rank}", model.config)
    return HTTPRollout(connection, routes, served, folder, server.tokens_per_call)
