"""The training side of rljob: runtime, stages, engines, algorithms, data buffer, rewards, data, CLI."""
