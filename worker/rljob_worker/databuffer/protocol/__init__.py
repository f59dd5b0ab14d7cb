"""What is said to a data buffer: by the workers of its host (`worker_side`) and its peers (`peer_side`, `streams`)."""
