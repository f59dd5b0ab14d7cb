"""Conversations and episodes as stages play them: what of them is a row, in rounds and from step to step."""
