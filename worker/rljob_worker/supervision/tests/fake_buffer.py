"""A data buffer that only says that it is ready.

`fake_buffer.py CODE` exits at once with CODE; `fake_buffer.py silent` never gets ready.
"""

import json
import signal
import sys


def main() -> int:
    if sys.argv[1:] == ["silent"]:
        signal.pause()
    if len(sys.argv) > 1:
        print("cannot reserve 1 GiB of shared memory", file=sys.stderr)
        return int(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGTERM])
    print(json.dumps({"ready": "databuffer", "address": "127.0.0.1:1", "port": 1}), flush=True)
    signal.sigwait([signal.SIGHUP])
    return 0


if __name__ == "__main__":
    sys.exit(main())
