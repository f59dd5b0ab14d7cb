"""Mutation testing: small mistakes put into one module at a time, and whether the tests beside it notice.

`mutants`, `operators`, `sample`, `changes`, `table` and `report` decide; `overlay`, `bench` and `trial` act.
"""
