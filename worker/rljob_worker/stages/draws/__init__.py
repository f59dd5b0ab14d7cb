"""Which prompts a step draws, which ranks and leases generate them, and which groups make its batch."""
