"""What to do about a job, decided from what is seen and remembered of it.  Pure, one concern a module."""

from rljob_operator.states.decide import decide
from rljob_operator.states.situation.situation import Decision, Deletion, QueueAction, Refusal, Situation

__all__ = ["Decision", "Deletion", "QueueAction", "Refusal", "Situation", "decide"]
