"""What `weight_sync.py` measures."""
