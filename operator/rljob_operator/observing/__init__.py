"""Reads what pods say of themselves: from text that anybody may have written to bounded, typed facts."""
