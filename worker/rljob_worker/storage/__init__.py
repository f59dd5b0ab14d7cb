"""Where bytes go that outlive a pod: a file system, or a bucket of an object store by the same few verbs.

A path of a bucket behaves like a `pathlib.Path` of a file system that knows no directories: what is written is seen
whole or not at all, nothing is renamed, and every failure is an OSError. Credentials come from the environment alone.
"""
