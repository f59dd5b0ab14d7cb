"""A preload that ends the process, as a library does that misses another."""

raise SystemExit("install the other one first")
