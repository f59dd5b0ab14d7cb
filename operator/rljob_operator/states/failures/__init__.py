"""What ended a pod, whose fault that is, and nodes that are suspected."""
