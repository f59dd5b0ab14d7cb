"""Rows from the parts of their producers to the shares of their consumers, in three phases that anybody can see:

    offers     every host that holds rows of a share says what they are      (`producing`)
    lay-out    all offers are there: one segment, in row_id order; room for it (`consuming`)
    data       from every host at once, each value straight to its place     (`transfer`)

`edges` holds the state of every edge and step on this host: where a row is, and why it is still there.
"""
