"""Bytes of a batch: in the arena, on the wire, and how rows of several sources come to lie in one segment. Pure.

`kind` (what columns are made of), `segment` (a batch in shared memory), `stream` (rows of sealed parts on the wire),
`arrangement` (which row of a source becomes which row of the consumer's segment), `landing` (from the wire to there).
"""
