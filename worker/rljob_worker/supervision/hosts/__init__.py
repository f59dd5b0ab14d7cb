"""Hosts of a launch: which there are, and the connection between each of them and host 0.

membership     which host this is, and where host 0 is: from Slurm, torchrun's variables, or a rank file. Pure
nodelist       Slurm's lists of nodes, written out. Pure
machine        what this machine is called on the network
secret         what only launchers with the job's token can read: frames of one connection, sealed
messages       what they say to each other
stream         frames of one connection, which never wait
connections    those of host 0 to all hosts
client         a host's connection to host 0
compatibility  whether hosts can run together, and which are missing. Pure
rendezvous     host 0 until every host is connected, and when it is over
"""
