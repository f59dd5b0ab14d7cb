"""What people call a row."""


def row_number(row_id: int) -> int:
    """Its number in the job, from 1, where its id counts from 0."""
    return int(row_id) + 1
