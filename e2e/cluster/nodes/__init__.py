"""Nodes of the test cluster: namespaces of this machine with a kubelet each, or objects with nothing behind."""
