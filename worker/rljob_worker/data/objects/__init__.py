"""Data sets in object stores: listed once, then read range by range, each range only by the rank that needs it.

store      one bucket: its listing, and ranges of its objects
lines, row_groups    data sets of JSON lines and of Parquet files on top of it
"""
