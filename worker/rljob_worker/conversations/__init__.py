"""Conversations: coroutines that play trajectories of several turns with a policy and a world."""

from rljob_worker.conversations.environment_play import environment
from rljob_worker.conversations.single_turn import single
from rljob_worker.conversations.tool_use import tools

__all__ = ["environment", "single", "tools"]
