"""The functions of users: which a job names, and whether they can be imported and called."""
