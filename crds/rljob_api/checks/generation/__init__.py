"""Checks of how rows are made: by which engine and weights, in conversations or episodes, by pods that come and go."""
