"""What is installed on a cluster, and the generators of what is not written by hand."""
