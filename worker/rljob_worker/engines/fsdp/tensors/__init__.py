"""Where the tensors of a model lie, and how they become whole."""
