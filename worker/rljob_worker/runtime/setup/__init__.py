"""What a worker finds and makes before its first step: environment, devices, the torch.distributed world, resources."""
