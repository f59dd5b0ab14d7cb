"""For all tests of the worker."""

import signal

# a shell starts background jobs with SIGINT ignored, and children inherit that: tests that press Ctrl-C would hang
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
