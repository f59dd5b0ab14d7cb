"""What the machine has for a plan: accelerators, memory, disk, tools, accounts."""
