"""Agents that are programs of their own: started, answered by the policy, and what became of them."""
