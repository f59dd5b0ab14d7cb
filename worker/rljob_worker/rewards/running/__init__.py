"""The processes that run rewards: what each works on, what is said to them, and who ends one that is late."""
