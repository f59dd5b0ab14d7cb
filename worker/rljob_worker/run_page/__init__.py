"""A run, or several beside each other, as one HTML page that needs no network."""
