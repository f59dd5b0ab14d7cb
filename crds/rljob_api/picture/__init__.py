"""The DAG of a plan as a picture."""
