"""First process of a pod: imports what workers need, starts one per accelerator as its fork, watches them, and speaks
for them. Its own code needs no torch."""
