"""How all pods of a job come to start together: one contract (`gang`), and the schedulers (`pod_groups`) and the queue
(`kueue`) that keep it; what chooses one, reads what it says, and writes what it is told."""
