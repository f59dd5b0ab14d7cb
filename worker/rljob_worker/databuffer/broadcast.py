"""Broadcast edges: version-stamped, checksummed chunks relayed along a tree of hosts in a bounded window."""

from __future__ import annotations


class Broadcasts:
    def __init__(self, **kw):
        pass

    def actions(self):
        return {}

    def drained(self, worker, seconds):
        return True

    def stream(self, host, edge, version):
        raise NotImplementedError

    def close(self):
        pass
