"""Leases of what is drawn: generators ask owners for them, and of Sample learn together what became of a round.

`ledger` decides, `leases` asks and answers through links. Every round of a generating stage is cut into numbered
leases: lease l is of owner l mod H, and generator g asks owner g mod H first. An owner that has none left passes the
question on to the next, once round all of them.
"""
