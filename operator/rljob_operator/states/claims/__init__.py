"""What conditions say of what is beside a gang."""
