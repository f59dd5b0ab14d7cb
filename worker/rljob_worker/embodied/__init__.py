"""Embodied episodes: simulators, and the policies that act in them."""
