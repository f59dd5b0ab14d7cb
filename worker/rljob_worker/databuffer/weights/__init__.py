"""Weights from the ranks that train them to every rank that samples with them, in chunks along one tree per source.

versions.py  which versions a host keeps of one source, and for how long. Pure
tree.py      one source's tree as one host sees it: slots, and who must still take what lies in them. Pure
chunk.py     a chunk on one host: its slot, who has not had it, and its bytes as a stream
edge.py      all trees of one edge and its readers: events in, effects out. Pure
weights.py   all edges of this host under the data buffer's lock; carries the effects out
arrivals.py  chunks on their way from a parent, fetched again when a stream breaks
client.py    what a worker sees: slots to write, chunks to read
"""
