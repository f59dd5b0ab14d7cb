"""Where metrics go besides the JSON lines: trackers, which make no step wait and end no run."""
