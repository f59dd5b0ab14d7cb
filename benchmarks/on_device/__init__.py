"""What `gpu.py` measures."""
