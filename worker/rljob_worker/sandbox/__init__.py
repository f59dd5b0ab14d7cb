"""Processes that call user code for a worker: what they may do, how each call is bounded, and who ends them.

`calls` is for callers that wait for answers in an event loop; rewards deal rows to processes of their own kind. A
process is a fork of a `guardian`, which limits what all it started uses together, and kills it; `confinement` is what a
fork puts on itself first. Rewards that are not confined are programs of the worker, whose groups the kernel ends.
"""
