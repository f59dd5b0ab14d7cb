"""How all pods of a job come to start together: one contract (`gang`), and the schedulers (`pod_groups`) and the queue
(`kueue`) that keep it; code that chooses one, reads its state, and writes ours for it."""
