"""A run as people see it in a terminal, while it goes on and when it has ended."""
