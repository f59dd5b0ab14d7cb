"""What is built in, each an entry of a table: stages, parts of algorithms, accelerator profiles.

CLI, operator and worker check a DAG against these same entries; a test compares them with the worker's registries.
"""
