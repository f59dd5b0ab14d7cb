"""The parts of `end_to_end.py`: what is measured, and how each system is made to do it."""
