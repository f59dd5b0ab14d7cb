"""What Kubernetes' Pod Security Standards say to a pod, check by check, as its own admission decides it."""
