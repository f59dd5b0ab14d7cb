"""The Python of users: where the modules of a job are searched, and the functions that it names in them."""
