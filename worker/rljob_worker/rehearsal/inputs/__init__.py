"""Data and models, on disk, in stores and on the hub: what a job reads, looked at where it is."""
