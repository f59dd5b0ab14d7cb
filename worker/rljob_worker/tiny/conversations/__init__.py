"""Tiny models that have read conversations (tool calls, a guessing game, a team of two), and data to play them on."""
