"""Data sets in object stores: listed once, then read range by range, each range only by the rank that needs it.

patience   how long a store that does not answer is asked again
trouble    what an error of a store means, in the words of the job
store      one bucket: its listing, and ranges of its objects
lines, row_groups    data sets of JSON lines and of Parquet files on top of it
"""
