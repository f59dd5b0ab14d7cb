"""What every process of ours does about itself: whom it outlives, its signals, its ports, its open files."""
