"""How this data buffer speaks with the others, and a worker with its own one.

A `Link` per peer carries messages, exactly once and in order; one `MessageReceiver` takes what the peers' links carry
here. A `PeerConnection` brings bytes, over connections of their own, as far as there are cores for them.
"""
