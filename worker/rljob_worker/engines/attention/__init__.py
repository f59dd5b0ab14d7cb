"""Attention over packed rows, by what the device has."""
