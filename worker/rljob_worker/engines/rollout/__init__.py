"""Engines that generate: a stream of requests in, tables of what has ended out."""
