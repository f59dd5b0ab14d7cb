"""Engines: everything that knows tensors, padding, sharding or a model library.

`protocols` and `rollout.protocol` are what the rest of the worker sees; `registry` turns a plan's engine into a live
one.
"""
