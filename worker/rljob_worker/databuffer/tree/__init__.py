"""Small messages that spread: gathered upwards and merged at every hop, or told to everybody, along the job's tree."""
