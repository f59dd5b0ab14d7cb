"""Generation of responses with a long tail of lengths, in virtual time."""
