"""The data buffer: one process per pod that exchanges rows and weights with its peers and with its own workers.

    worker ──reserve, write, seal──▶ arena (shared memory) ◀──map, read── worker
                   │ UNIX socket                                 ▲
                   ▼                                             │ one copy
             own data buffer ◀────── Arrow Flight over TCP ──▶ data buffers of other pods

Pure decisions: `arena` (where a segment lies), `repartition` (which rank gets a row), `routing` (who sends to whom),
`rows` (bytes of a batch). State: `store`. Input and output: `server`, `peers`, `exchange`, `broadcast`.
A worker uses `client.BufferClient` only.
"""
