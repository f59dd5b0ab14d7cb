"""The data buffer: one process per pod that exchanges rows and weights with its peers and with its own workers.

    worker ──reserve, write, seal──▶ arena (shared memory) ◀──map, read── worker
                   │ UNIX socket                                 ▲
                   ▼                                             │ one copy
             own data buffer ◀── Arrow Flight: messages, rows, weights ──▶ data buffers of other pods

Where a row is, and why, is in three files:

    pull/edges.py        the state of every edge and step on a host: parts, shares and their phases
    pull/producing.py    what is put, who it is for, who has taken it
    pull/consuming.py    offers, lay-out, room, readers; `pull/transfer.py` brings the data

and next to them `tree` (reports, layouts, verdicts), `weights` (chunks along trees of their own), `links` (messages to
the other data buffers, once and in order), `store` (arena and spill file, the one lock), `routes` and `rows` (pure),
`protocol` (all that is said), and `server`, which puts it together in `server/buffer.py`. A worker imports
`client.BufferClient` only.

Threads never wait for threads: what waits is a state in a table, moved on by an event; pools are small and run work
that can go on at once. What background work raises ends every wait of the job, by name.
"""
