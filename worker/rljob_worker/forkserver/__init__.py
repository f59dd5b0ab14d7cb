"""A process that imports what workers need once and forks each worker from there.

Importing torch, its distributed parts and transformers costs seconds of CPU; a fork of a process that has them costs
milliseconds, and its memory is shared until it is written to. Each pod has one fork server, started by its launcher:

    launcher ──channel── fork server ──fork── worker 0, worker 1, …

The launcher asks over the channel for a worker, with its environment and file descriptors; the server says which
process that became, and with which status it ended. The server dies with its launcher (the channel's end) and
workers die with the server (the kernel's parent-death signal). On one machine a **root** fork server lives as long as
`rljob run`: launchers that fit its environment get their server as a fork of it, so that a restart imports nothing.

The standard library's `multiprocessing.forkserver` was looked at first: its children outlive it, cannot be given an
environment, output or process group, import the launcher's main module again, and cannot be servers themselves; a
preload that fails or leaves a thread goes unnoticed.

Nothing that belongs to a user is imported here: a job's folder joins a worker's path after the fork. A server that is
not safe to fork (a preload failed, or left a thread behind) says so and starts workers as fresh processes.
"""
