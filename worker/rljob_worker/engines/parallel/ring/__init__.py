"""Ring attention: queries stay, keys and values go round. `tiles` says what meets, `attention` computes it."""
