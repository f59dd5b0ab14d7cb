"""A checkpoint as a directory that transformers or peft loads."""
