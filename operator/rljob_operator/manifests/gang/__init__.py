"""Gang schedulers and queues, one file each."""
