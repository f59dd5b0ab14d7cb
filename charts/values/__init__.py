"""The chart's values: one model, from which values.yaml, its schema, the README's table and the image list are made."""
