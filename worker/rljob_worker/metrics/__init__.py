"""What a run writes and exposes: JSON lines, TensorBoard, trackers, Prometheus names. Never imports torch."""
