"""What a host of a job consists of: its pods as processes, its run directory, its services. Never imports torch."""
