"""A process that imports what workers need once, from which they are forks.

Importing torch, its distributed parts and transformers costs seconds of CPU; a fork of a process that has them costs
milliseconds, and its memory is shared until it is written to. A launcher imports them and forks its workers. Where
`rljob` runs a job, a **root** imports them before, for as long as the run goes on, and launchers are forks of it: a
restart imports nothing.

    supervisor ──socket── root ──fork── launcher ──fork── worker 0, worker 1, …

A caller asks the root over a socket for a process, with its environment and file descriptors; the root reports which
process that became, and with which status it ended. Forks die with the process that forked them (the kernel's
parent-death signal), and what a caller has asked for ends with its connection. The root outlives the supervisor, and
ends what is left of the run then.

The standard library's `multiprocessing.forkserver` was looked at first: its children outlive it, cannot be given an
environment, output or process group, import the launcher's main module again, and cannot be servers themselves; a
preload that fails or leaves a thread goes unnoticed.

Nothing that belongs to a user is imported here: a job's folder joins a worker's path after the fork. A process that is
not safe to fork (a preload failed, or left a thread behind) says so and starts workers as fresh programs.
"""
