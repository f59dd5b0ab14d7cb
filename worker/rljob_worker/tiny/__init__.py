"""A tiny language model and its data set, made from a seed, so that RL can be watched to work on a laptop.

The base model has read worked solutions and, more often, terse guesses that are mostly wrong.
Greedily it guesses; what RL has to find out is that working a problem out pays.
"""
