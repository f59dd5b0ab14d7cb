"""Attempts of a job, begun, watched and ended on one machine (`rljob run`) or on many that no cluster manages (`rljob
launch`, with a launcher on each).

    hosts          who the hosts of a launch are, and what they say to each other
    gang           the pods of all hosts in one attempt
    session        what a host does for the gang: its pods, attempt by attempt, as host 0 says
    member         a host, which connects and holds its session; `host_0` is that of host 0
    one_host       the only host of `rljob run`, which holds its session in the process that supervises it
    supervisor     attempt after attempt until the job is done, stopped, or beyond its restarts; `restart` decides
    record         what is said and written of a run

    host n ─ Hello ─▶ host 0 ─ Begin ─▶ host n ─ Serving ─▶ host 0 ─ Book ─▶ host n ─ Ended ─▶ host 0 ─ Clear …

Host 0 speaks to each host once per phase of an attempt, for any number of hosts, and to nobody during a step.
"""
