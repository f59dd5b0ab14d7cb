"""A job of many hosts, of which a few are real: who reports, who judges, who hears."""
