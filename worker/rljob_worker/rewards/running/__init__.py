"""The processes that run rewards: what each works on, the messages to them, and how one that is late is ended."""
