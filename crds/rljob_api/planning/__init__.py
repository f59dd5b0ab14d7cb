"""From a job to its `Plan`, and what the plan costs in bytes and memory."""
