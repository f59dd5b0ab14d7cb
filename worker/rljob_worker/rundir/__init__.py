"""A run's directory: what is where in `runs/NAME/`, who holds it, and to whom it belongs."""
