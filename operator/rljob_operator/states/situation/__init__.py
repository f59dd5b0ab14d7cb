"""What a decision follows from and what it comes to: pods, the queue, progress, and the conditions that say so."""
