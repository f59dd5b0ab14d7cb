"""What was sampled and answered in conversations: recorded, kept in files, and fed again where a step is repeated."""
