"""The embedded default: the same job on one machine, each planned pod a small process tree. Never imports torch."""
