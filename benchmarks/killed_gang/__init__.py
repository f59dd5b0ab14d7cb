"""A gang of real data buffers and light workers whose processes are killed: rows exact, memory flat, nothing left."""
