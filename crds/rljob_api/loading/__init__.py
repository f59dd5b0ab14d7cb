"""From what a user writes (YAML, `--set`, a pipeline in Python) to a job that can run."""
