"""A device without numbers, on which engines run to the end and every byte is counted."""
