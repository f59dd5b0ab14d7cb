"""Memory of workers in each phase of a job: as its Plan says, and as it is measured."""
