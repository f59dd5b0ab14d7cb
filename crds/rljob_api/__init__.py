"""What an RLJob is: types, validation, DAG, planner, failure policy.  Pure: no I/O, no torch, no
Kubernetes."""
