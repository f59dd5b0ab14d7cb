"""What may become of a job that exists: changes, failures, resumption."""
