"""What is in `runs/NAME/`: who holds it, what an earlier run left there, and how this one begins on it."""
