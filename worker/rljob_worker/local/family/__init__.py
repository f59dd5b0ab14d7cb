"""The processes of a run as one family: what stays while attempts come and go, and who ends whatever is left."""
