"""Reports to people and to Prometheus what happened to jobs."""
