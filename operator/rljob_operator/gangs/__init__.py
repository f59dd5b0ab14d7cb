"""How all pods of a job come to start together: one contract (`gang`), and a module or folder for each scheduler and
queue that keeps it; what chooses one, reads what it says, and writes what it is told."""
