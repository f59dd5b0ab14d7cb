"""Rewards of rows: by functions, by models, and by how far an episode got."""
