"""What the kernel holds user code to: Landlock, seccomp, limits, and the proxy to listed servers."""
