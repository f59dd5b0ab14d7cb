"""How this data buffer speaks with the others, and a worker with its own one.

A `Link` per peer carries messages, exactly once and in order; one `Inbox` hears what the peers' links carry here. A
`Channel` brings bytes, as many as there are streams under way.
"""
