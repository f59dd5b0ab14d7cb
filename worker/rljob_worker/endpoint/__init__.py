"""An HTTP server by which agents that are programs of their own ask a policy for its turns.

It knows keys, bodies and answers; who plays with a key is a `calls.TurnPlayer`.
"""
