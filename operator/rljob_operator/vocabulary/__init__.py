"""Words that every room uses: which job, what time, how long a pause."""
