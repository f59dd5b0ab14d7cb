"""Bytes of a batch: in the arena, on the wire, and how rows of several sources come to lie in one segment. Pure.

`segment` (a batch in shared memory), `arrangement` (which row of a source becomes which row of the consumer's segment),
`stream` (rows of sealed parts on the wire), `landing` (from there to their places), `byte_stream` (chunks of weights).
"""
