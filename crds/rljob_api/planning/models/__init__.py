"""Whether the models of a plan can do what it asks of them, where their configs are at hand."""
