"""Prompts: from files to token ids, in an order that is a function of the seed and the prompt's ordinal alone."""
