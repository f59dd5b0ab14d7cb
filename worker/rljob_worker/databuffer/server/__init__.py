"""The data buffer as others reach it: Flight's shell around what answers workers and peers."""
