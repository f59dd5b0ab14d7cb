"""Bytes of a batch: in the arena, on the wire, and how rows of several sources come to lie in one segment. Pure.

`schema` (a batch as Arrow), `segment` (a batch in shared memory), `stream` (rows of sealed parts as messages),
`arrangement` (which row of a source becomes which row of the consumer's segment).
"""
