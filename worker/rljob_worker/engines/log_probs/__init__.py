"""Log-probabilities and divergences, from hidden states or logits."""
