"""Tiny policies that act, cloned from scripts that do too little: what they are taught, and what they act in."""
