"""`rljob new`: what a job begins with."""
