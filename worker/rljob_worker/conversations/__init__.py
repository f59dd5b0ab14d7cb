"""Conversations: coroutines that play trajectories of several turns with a policy and a world."""

from rljob_worker.conversations.run_functions.environment_play import environment
from rljob_worker.conversations.run_functions.program import program
from rljob_worker.conversations.run_functions.single_turn import single
from rljob_worker.conversations.run_functions.team_play import team
from rljob_worker.conversations.run_functions.tool_use import tools

__all__ = ["environment", "program", "single", "team", "tools"]
