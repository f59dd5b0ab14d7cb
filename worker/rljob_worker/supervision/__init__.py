"""Attempts of a job, begun, watched and ended on one machine (`rljob run`) or on many that no cluster manages (`rljob
launch`, with a launcher on each).

    seat        which host this is, and where host 0 is: from Slurm, torchrun's variables, or a rank file. Pure
    secret      what only launchers with the job's token can read: frames of one connection, sealed
    messages    what they say to each other
    line, hub   connections that never wait; all of them, at host 0
    roll        who is here, and what keeps them from running together. Pure
    meeting     host 0 until everybody is there, and when it is over
    gang        the pods of all hosts in one attempt
    calling     a host's way to host 0
    duty        what a host does for the gang: its pods, attempt by attempt, as host 0 says
    station     a host, which calls and has its duty; `own` is that of host 0
    here        the only host of `rljob run`, which has its duty in the process that supervises it
    supervisor  attempt after attempt until the job is done, stopped, or beyond its restarts; `restart` decides
    account     what is said and written of it

    host n ─ Hello ─▶ host 0 ─ Begin ─▶ host n ─ Serving ─▶ host 0 ─ Book ─▶ host n ─ Ended ─▶ host 0 ─ Clear …

Host 0 speaks to each host once per phase of an attempt, whatever their number, and to nobody during a step.
"""
