"""Certificates of the data buffers of an attempt.

Whoever starts an attempt issues them, the operator as well as the local supervisor: so they are made here. No other
room of the api needs `cryptography`, and none imports this one.
"""
