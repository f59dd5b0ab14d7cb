"""What is said to a data buffer, by the workers of its host (`worker_calls`, `worker_answers`) and by its peers
(`peer_side`)."""
