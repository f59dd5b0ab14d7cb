"""A tiny model that sees, pictures of shapes, and data that asks how many shapes of a kind a picture has."""
