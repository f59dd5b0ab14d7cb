"""What steps of jobs with pictures take: bytes between hosts, memory, pixel work, updates on any ranks."""
