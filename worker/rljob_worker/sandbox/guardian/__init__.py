"""The process that forks those that run user code, counts what they use and kills them; its handles in the worker."""
