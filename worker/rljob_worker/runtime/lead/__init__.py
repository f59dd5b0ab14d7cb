"""The lead worker: where the job goes on, what each step comes to, and what is written of it."""
