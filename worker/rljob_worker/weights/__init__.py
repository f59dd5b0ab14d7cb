"""Weight sync: weights on their way from the engines that train them to those that sample with them.

sync        what one rank does about all edges of weights: open, sync a version, close
endpoints   one rank's part in one edge: it copies, sends, takes part in gathering, or receives
buffers     chunks through the data buffers of the hosts
collective  chunks by broadcasts, on process groups across worker groups (`broadcast_group`)
delta       of a version only what changed, on any of these ways
slices      of each tensor the part that a rank keeps, under a name of its own
chunks      tensors in chunks, and back
"""
