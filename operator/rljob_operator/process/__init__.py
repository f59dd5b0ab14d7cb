"""The process around the work: settings, its two ports, signals, who leads, whether it is well."""
