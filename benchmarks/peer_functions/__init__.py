"""The algorithms of verl, TRL and siiRL beside ours: their venv, shared batches, what is compared."""
