"""Conversations: coroutines that play trajectories of several turns with a policy and a world."""
