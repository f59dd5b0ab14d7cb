"""Children of a job as plain data.  Pure: nothing here speaks to a cluster."""
