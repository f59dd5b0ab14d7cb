"""Run functions that are shipped: one turn, tools, an environment, a team."""
