"""How a copy of a model is spread over ranks, and what they send each other."""
