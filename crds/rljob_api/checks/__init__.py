"""Checks of a job whose types are right, one file per question.  Each yields every `Problem` it finds."""
